"""The APIs of the Kafka protocol that we can speak, and in which versions.

The table comes from the declarations; nothing of an API's messages is imported until `load` asks for it.
These are the versions that can be encoded and decoded; a session may advertise fewer.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import NamedTuple, TypeAlias, cast

from trunkline.protocols.kafka.messages.catalogue import ROWS, ApiKey
from trunkline.protocols.kafka.wire import Message

__all__ = ["APIS", "Api", "ApiKey", "Request", "Response", "load", "request_header_version", "response_header_version"]

Request: TypeAlias = Message
Response: TypeAlias = Message


class Api(NamedTuple):
    """One row: `flexible_from` is None for an API without flexible versions."""

    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    flexible_from: int | None

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


APIS: dict[int, Api] = {row[0]: Api(*row) for row in ROWS}


def request_header_version(key: int, version: int) -> int:
    """2 when the request is flexible, else 1.  (Version 0, without a client id, was only ControlledShutdown's.)"""
    return 2 if APIS[key].is_flexible(version) else 1


def response_header_version(key: int, version: int) -> int:
    """1 when the response is flexible, else 0.

    ApiVersions always has 0: a client that does not know yet what the broker speaks must be able to read it.
    """
    return 1 if key != ApiKey.API_VERSIONS and APIS[key].is_flexible(version) else 0


@cache
def load(key: int) -> tuple[type[Request], type[Response]]:
    """The request and the response class of an API, importing only its module."""
    api = APIS[key]
    module = import_module(f"trunkline.protocols.kafka.messages.{api.module}")
    request = cast(type[Request], getattr(module, f"{api.name}Request"))
    response = cast(type[Response], getattr(module, f"{api.name}Response"))
    return request, response
