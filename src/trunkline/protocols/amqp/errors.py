"""The reply codes of AMQP 0-9-1, and the error that bytes on the wire can cause.

`FrameError` is both an exception and an event: the parser never raises it, it ends its list of events with it, so that
what came before the offending bytes is still carried out. Decoders that are called with a part of a frame (a field table,
a property section) raise it.
"""

from __future__ import annotations

CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
NO_CONSUMERS = 313
CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

REPLY_NAMES = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

# The errors that end a channel and not its connection: "soft" ones, in the words of the specification.
CHANNEL_ERRORS = frozenset(
    {
        CONTENT_TOO_LARGE,
        NO_ROUTE,
        NO_CONSUMERS,
        ACCESS_REFUSED,
        NOT_FOUND,
        RESOURCE_LOCKED,
        PRECONDITION_FAILED,
    }
)


class FrameError(Exception):
    """Bytes that break the protocol.

    `channel` 0 ends the connection. Another number ends that channel only, and the parser goes on; that happens for a
    message that is larger than the limit, whose bytes are skipped.
    """

    def __init__(self, reply_code: int, text: str, class_id: int = 0, method_id: int = 0, channel: int = 0) -> None:
        super().__init__(reply_code, text, class_id, method_id, channel)
        self.reply_code = reply_code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id
        self.channel = channel

    @property
    def reply_text(self) -> str:
        """The text as RabbitMQ sends it in a close method: the code's name, then what happened."""
        return f"{REPLY_NAMES[self.reply_code]} - {self.text}"

    @property
    def soft(self) -> bool:
        """Whether it ends only the channel on which it happened."""
        return self.reply_code in CHANNEL_ERRORS

    def __str__(self) -> str:
        return self.reply_text
