"""The limits of STOMP connections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StompLimits:
    max_headers: int = 1_000  # of a frame
    max_head_bytes: int = 128 << 10  # command and headers of a frame
    max_message_bytes: int = 134_217_728
    max_subscriptions: int = 10_000  # of one connection
    max_transactions: int = 100  # open ones of one connection
    max_transaction_messages: int = 100_000
    max_transaction_bytes: int = 256 << 20
    max_unsettled: int = 200_000  # deliveries of one connection without acknowledgement
    connect_timeout_ms: int = 10_000
    min_heart_beat_ms: int = 500  # a client that asks for more beats gets these
    # Publications of one connection whose receipt waits for the disk; above this it is not read.
    max_unconfirmed_bytes: int = 32 << 20
    # What a client has not taken off its connection; above this it gets no further messages.
    write_high_water_bytes: int = 1 << 20
    turn_deliveries: int = 2_048  # handed to a subscription without a prefetch limit in one go
