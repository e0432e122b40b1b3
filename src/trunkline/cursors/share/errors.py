"""What a share partition refuses. `name` is Kafka's."""

from __future__ import annotations


class ShareError(Exception):
    name = "UNKNOWN_SERVER_ERROR"


class RecordNotHeld(ShareError):
    """The member does not hold a record that it acknowledges: its lock is over, or it never had one."""

    name = "INVALID_RECORD_STATE"


class InvalidAcknowledgement(ShareError):
    """An acknowledgement of something that was never given out, or of a kind that there is not."""

    name = "INVALID_REQUEST"
