"""What the broker refuses of exchanges, queues and bindings. Each protocol turns the reason into its own code.

The texts are RabbitMQ's, since people search for them and some clients compare them.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    NOT_FOUND = "not found"
    PRECONDITION_FAILED = "precondition failed"
    ACCESS_REFUSED = "access refused"
    RESOURCE_LOCKED = "resource locked"
    NOT_ALLOWED = "not allowed"
    COMMAND_INVALID = "command invalid"
    RESOURCE_ERROR = "resource error"


class Refused(Exception):
    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def not_found(kind: str, name: str, vhost: str) -> Refused:
    return Refused(Reason.NOT_FOUND, f"no {kind} '{name}' in vhost '{vhost}'")


def precondition(text: str) -> Refused:
    return Refused(Reason.PRECONDITION_FAILED, text)


def access_refused(text: str) -> Refused:
    return Refused(Reason.ACCESS_REFUSED, text)


def locked(queue: str, vhost: str) -> Refused:
    return Refused(
        Reason.RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original declaration.",
    )


def inequivalent(argument: str, kind: str, name: str, vhost: str, received: str, current: str) -> Refused:
    return precondition(
        f"inequivalent arg '{argument}' for {kind} '{name}' in vhost '{vhost}': "
        f"received {received} but current is {current}"
    )


def shown(value: object, beside: object) -> str:
    """An argument as RabbitMQ shows it in these texts: with its type, if the declaration beside it has none."""
    if value is None:
        return "none"
    if beside is not None:
        return f"'{str(value).lower() if isinstance(value, bool) else value}'"
    text = str(value).lower() if isinstance(value, bool) else value
    return f"the value '{text}' of type '{type_name(value)}'"


def type_name(value: object) -> str:
    """The type of an argument or header as RabbitMQ calls it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    return _TYPE_NAMES.get(type(value).__name__, type(value).__name__)


_TYPE_NAMES = {
    "NoneType": "void",
    "str": "longstr",
    "bytes": "binary",
    "float": "double",
    "Decimal": "decimal",
    "Timestamp": "timestamp",
    "datetime": "timestamp",
    "dict": "table",
    "list": "array",
}
