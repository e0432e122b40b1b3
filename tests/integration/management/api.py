"""A plain HTTP client for the tests: one connection per request, JSON in and out."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import quote

TIMEOUT_SECONDS = 30.0


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Api:
    def __init__(self, port: int, user: str | None = "guest", password: str = "guest") -> None:
        self.port = port
        self._headers: dict[str, str] = {}
        if user is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**self._headers, **(headers or {})})
            response = connection.getresponse()
            content = response.read()
            kind = response.headers.get("content-type", "")
            decoded = json.loads(content) if content and kind.startswith("application/json") else content
            return Answer(response.status, decoded, {name.lower(): value for name, value in response.headers.items()})
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.body


def part(name: str) -> str:
    """A name as a segment of a path."""
    return quote(name, safe="")
