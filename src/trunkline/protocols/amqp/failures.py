"""What goes wrong while a method is carried out, as the error that its client is told."""

from __future__ import annotations

from typing import Final

from trunkline.broker.access import AccessDenied
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.transactions.errors import TransactionError
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.errors import FrameError

Failure = FrameError | Refused | QueueError | LogError | TransactionError
FAILURES: Final = (FrameError, Refused, QueueError, LogError, TransactionError)

_CODES: Final = {
    Reason.NOT_FOUND: codes.NOT_FOUND,
    Reason.PRECONDITION_FAILED: codes.PRECONDITION_FAILED,
    Reason.ACCESS_REFUSED: codes.ACCESS_REFUSED,
    Reason.RESOURCE_LOCKED: codes.RESOURCE_LOCKED,
    Reason.NOT_ALLOWED: codes.NOT_ALLOWED,
    Reason.COMMAND_INVALID: codes.COMMAND_INVALID,
    Reason.RESOURCE_ERROR: codes.RESOURCE_ERROR,
}
_MAX_REPLY_TEXT_BYTES: Final = 255


def error_of(failure: Failure, method: type[m.Method]) -> FrameError:
    """The error that a client is told after it called this method; `Method` itself if it called none."""
    if isinstance(failure, FrameError):
        return failure
    if isinstance(failure, Refused):
        return FrameError(_CODES[failure.reason], failure.text, method.CLASS_ID, method.METHOD_ID)
    if isinstance(failure, AccessDenied):
        return FrameError(codes.ACCESS_REFUSED, str(failure), method.CLASS_ID, method.METHOD_ID)
    if isinstance(failure, UnknownTopicOrPartition):  # the queue went while it was being used
        return FrameError(codes.NOT_FOUND, str(failure))
    return FrameError(codes.INTERNAL_ERROR, str(failure))


def short_text(text: str) -> str:
    """As much of a text as fits a short string."""
    raw = text.encode()
    return text if len(raw) <= _MAX_REPLY_TEXT_BYTES else raw[:_MAX_REPLY_TEXT_BYTES].decode("utf-8", "ignore")
