"""The broker's HTTP API, asked by the command line: one request at a time, JSON in and out."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from trunkline.client.login import Login

DEFAULT_PORT = 15672
DEFAULT_TLS_PORT = 15671


class HttpRefused(Exception):
    """The broker has answered with an error. The text says which."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} (HTTP {status})")
        self.status = status


class HttpClient:
    def __init__(self, url: str, login: Login, *, timeout_s: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not http://HOST:PORT")
        secure = parts.scheme == "https"
        port = parts.port or (DEFAULT_TLS_PORT if secure else DEFAULT_PORT)
        if secure:
            context = login.tls.context() if login.tls is not None else None
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)
        self._headers = {"x-requested-with": "trunkline"}
        if login.user is not None:
            credentials = f"{login.user}:{login.password}".encode()
            self._headers["authorization"] = "Basic " + base64.b64encode(credentials).decode()

    def get(self, path: str) -> Any:
        try:
            self._connection.request("GET", path, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except http.client.HTTPException as error:
            self._connection.close()
            raise ConnectionError(f"the broker's answer cannot be read: {error!r}") from error
        except OSError:
            self._connection.close()  # the next request connects anew
            raise
        try:
            value = json.loads(body)
        except ValueError:
            raise HttpRefused(answer.status, "the answer is not JSON: is this the broker's HTTP port?") from None
        if answer.status != 200:
            raise HttpRefused(answer.status, str(value.get("reason") if isinstance(value, dict) else value))
        return value

    def close(self) -> None:
        self._connection.close()
