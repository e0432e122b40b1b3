"""A small synchronous client of SQS and SNS, for the command line: JSON over one HTTP connection.

Requests are signed if there is a key; on the broker's own machine none is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
from datetime import UTC, datetime
from typing import Self
from urllib.parse import urlsplit

from trunkline.client.errors import DISCONNECTED, ClientError

_REGION = "us-east-1"


class AwsRefused(ClientError):
    """The broker's answer is an error; `code` is Amazon's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, f"{message} ({code})")
        self.code = code


class AwsClient:
    def __init__(self, endpoint: str, *, user: str = "", secret: str = "", timeout_s: float = 30.0) -> None:
        """`endpoint` is `http://host:port`; `user` and `secret` are what requests are signed with."""
        parts = urlsplit(endpoint)
        self._user, self._secret = user, secret
        self.endpoint = endpoint
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.netloc
        self._connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def sqs(self, operation: str, **parameters: object) -> dict[str, object]:
        return self.call("AmazonSQS", "sqs", operation, parameters)

    def sns(self, operation: str, **parameters: object) -> dict[str, object]:
        return self.call("AmazonSNS", "sns", operation, parameters)

    def call(self, target: str, service: str, operation: str, parameters: object) -> dict[str, object]:
        body = json.dumps(parameters).encode()
        headers = {
            "host": self._host,
            "x-amz-target": f"{target}.{operation}",
            "content-type": "application/x-amz-json-1.0",
        }
        if self._secret:
            self._sign(headers, service, body)
        try:
            self._connection.request("POST", "/", body, headers)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(
                DISCONNECTED,
                f"no answer from {self.endpoint}: {error}",
                "is a broker running there? name another with --endpoint-url",
            ) from error
        try:
            document = json.loads(text) if text else {}
        except ValueError:
            document = {}
        if answer.status != 200:
            code = (answer.headers.get("x-amzn-query-error") or str(document.get("__type", answer.status))).partition(
                ";"
            )[0]
            raise AwsRefused(code, str(document.get("message", answer.reason)))
        return document if isinstance(document, dict) else {}

    def _sign(self, headers: dict[str, str], service: str, body: bytes) -> None:
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers["x-amz-date"] = time
        signed = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = f"POST\n/\n\n{lines}\n{signed}\n{hashlib.sha256(body).hexdigest()}"
        scope = f"{time[:8]}/{_REGION}/{service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self._secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._user}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
