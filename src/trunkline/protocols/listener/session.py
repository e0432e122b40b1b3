"""What a connection and a protocol's session ask of each other.

There is no I/O in this file, so that sessions can be tested without a socket: a test is the `Wire` of its session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from trunkline.broker.administration.connections import About

Buffer: TypeAlias = bytes | bytearray | memoryview


class Wire(Protocol):
    """What a session asks of its connection."""

    @property
    def host(self) -> str:
        """The client's address."""

    @property
    def port(self) -> int: ...

    @property
    def local_host(self) -> str:
        """The address that the client has reached us at."""

    @property
    def listener(self) -> str:
        """The name of the listener that the connection came in on: `kafka`, `mqtt-ws` …"""

    @property
    def certificate(self) -> str:
        """The distinguished name in the certificate that the client has shown, and that was checked; or nothing."""

    def write(self, data: Buffer) -> None:
        """Send this behind what was written before. Nothing is sent any more once the connection closes."""

    def write_all(self, buffers: Sequence[Buffer]) -> None: ...

    def close(self) -> None:
        """Close once everything is sent. What the client still says is not heard; `lost` follows in a later pass."""

    def abort(self) -> None:
        """Close now, whatever is unsent."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None:
        """Read on, if reading was paused. What is held is counted again, too."""

    def read_into(self, buffer: memoryview | None) -> None:
        """Read what comes next into this, up to its end, until told otherwise; None: into the buffer that all share."""

    def count_input(self) -> None:
        """The session's `held_bytes` has changed, other than by a read."""

    def unsent_bytes(self) -> int:
        """What was written, and the client has not taken yet."""

    def crowded(self) -> bool:
        """Whether all clients together have left more than `max_unsent_bytes` untaken."""


class Session(Protocol):
    """What a connection asks of its session."""

    @property
    def held_bytes(self) -> int:
        """What this client has made the broker keep that is not complete, not taken up or not committed."""

    def read(self, data: memoryview) -> None:
        """This was read. It is gone when this returns: the buffer is used again."""

    def pause_writing(self) -> None:
        """The client does not take what is sent; only answers to what it asks for should follow."""

    def resume_writing(self) -> None: ...

    def out_of_input(self) -> None:
        """The broker has no room for what all clients have begun to send, and this one has begun most of it: close."""

    def shut_down(self) -> None:
        """The broker ends: say so, and close."""

    def lost(self) -> None:
        """The connection is gone, whoever ended it. It may be the session itself, which then knows already."""


@runtime_checkable
class Accountable(Protocol):
    """A session that can say who its client is, to whoever looks at connections, and can be ended by an operator."""

    def about(self) -> About | None: ...

    def force_close(self, reason: str) -> None: ...


S = TypeVar("S", bound=Session)
MakeSession: TypeAlias = Callable[[Wire], S]
