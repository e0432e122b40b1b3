"""A call: one operation that a client asks for, in whichever of the two protocols, and the readers of its parameters.

An operation gives its result as a dictionary by the names of JSON; or it returns `LATER`, and answers when what it waits for
has happened. Exactly one answer goes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from trunkline.protocols.aws.errors import AwsError, invalid, missing
from trunkline.protocols.http.message import Response
from trunkline.security.principal import Principal

Parameters: TypeAlias = Mapping[str, object]
Result: TypeAlias = dict[str, object]


class Later(Enum):
    LATER = "later"


LATER: Final = Later.LATER
Answer: TypeAlias = Result | Later | Awaitable[Result | Later]
Operation: TypeAlias = "Callable[[Call], Answer]"
Encoder: TypeAlias = "Callable[[Call, Result | AwsError], Response]"


class Call:
    __slots__ = ("account", "encode", "host", "json", "operation", "parameters", "principal", "region", "reply", "request_id",
                 "scheme", "service")  # fmt: skip

    def __init__(self, service: str, operation: str, parameters: Parameters, *, json: bool) -> None:
        self.service = service
        self.operation = operation
        self.parameters = parameters
        self.json = json
        self.principal = Principal("")
        self.region = "us-east-1"
        self.account = "000000000000"
        self.host = ""  # as the client calls this server, with its port
        self.scheme = "http"
        self.request_id = ""
        self.encode: Encoder | None = None  # set by who has the answer sent
        self.reply: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answer(self, result: Result | AwsError) -> None:
        """For an operation that has said `LATER`. Nothing becomes of it if the client has gone."""
        if not self.reply.done() and self.encode is not None:
            self.reply.set_result(self.encode(self, result))

    def text(self, name: str) -> str:
        value = optional_text(self.parameters, name)
        if value is None or not value:
            raise missing(name)
        return value


# -- parameters --------------------------------------------------------------------------------------------------------


def optional_text(parameters: Parameters, name: str) -> str | None:
    value = parameters.get(name)
    if value is None or isinstance(value, str):
        return value
    raise wrong_type(name, "a string")


def optional_int(parameters: Parameters, name: str, low: int, high: int) -> int | None:
    """In the Query protocol numbers are text."""
    value = parameters.get(name)
    if value is None or (isinstance(value, str) and not value):
        return None
    if isinstance(value, str):
        try:
            value = int(value) if len(value) < 20 else high + 1
        except ValueError:
            raise invalid(f"Value {value} for parameter {name} is invalid. Reason: Must be an integer.") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer")
    if not low <= value <= high:
        reason = f"Must be between {low} and {high}, if provided."
        raise invalid(f"Value {value} for parameter {name} is invalid. Reason: {reason}")
    return value


def texts(parameters: Parameters, *names: str) -> list[str]:
    """A list of strings, under whichever of the names it comes."""
    for name in names:
        value = parameters.get(name)
        if value is None:
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return [str(item) for item in value]
        raise wrong_type(name, "a list of strings")
    return []


def text_map(parameters: Parameters, *names: str) -> dict[str, str]:
    for name in names:
        value = parameters.get(name)
        if value is None:
            continue
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            return {str(key): str(item) for key, item in value.items()}
        raise wrong_type(name, "a map of strings")
    return {}


def structures(parameters: Parameters, name: str) -> Sequence[Parameters]:
    value = parameters.get(name)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise wrong_type(name, "a list of structures")


def wrong_type(name: str, expected: str) -> AwsError:
    return AwsError("SerializationException", f"{name} must be {expected}.")
