"""What goes wrong, as the ERROR frame that its client is told: a short message in a header, and the detail as the body.

Texts are RabbitMQ's where it has one.
"""

from __future__ import annotations

from typing import Final

from trunkline.broker.access import AccessDenied
from trunkline.broker.messaging.refusals import Refused
from trunkline.broker.transactions.errors import TransactionError
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.protocols.stomp.codec import MalformedFrame


class StompError(Exception):
    def __init__(self, message: str, detail: str) -> None:
        super().__init__(f"{message}: {detail}")
        self.message = message
        self.detail = detail


FAILURES: Final = (StompError, MalformedFrame, Refused, QueueError, LogError, TransactionError)


def error_of(failure: Exception) -> StompError:
    if isinstance(failure, StompError):
        return failure
    if isinstance(failure, MalformedFrame):
        return StompError("Malformed frame", failure.text)
    if isinstance(failure, Refused):
        return _of_the_broker(failure.reason.name, failure.text)
    if isinstance(failure, AccessDenied):
        return _of_the_broker("ACCESS_REFUSED", str(failure))
    if isinstance(failure, UnknownTopicOrPartition):  # the queue went while it was being used
        return _of_the_broker("NOT_FOUND", str(failure))
    return _of_the_broker("INTERNAL_ERROR", str(failure))


def _of_the_broker(reason: str, text: str) -> StompError:
    return StompError(reason.lower(), f"{reason} - {text}")


def missing(command: str, header: str) -> StompError:
    return StompError(f"Missing {header}", f"\"{command}\" must include a '{header}' header\n")


def invalid_header(detail: str) -> StompError:
    return StompError("Invalid header", f"{detail}\n")
