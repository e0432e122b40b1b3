"""The limits of AMQP connections, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AmqpLimits:
    channel_max: int = 2_047
    frame_max_bytes: int = 131_072
    heartbeat_s: int = 60  # what the broker proposes; the client may ask for less, more, or none
    handshake_timeout_ms: int = 10_000
    close_timeout_ms: int = 10_000  # how long a client may take to answer connection.close
    max_message_bytes: int = 134_217_728
    max_consumers_per_channel: int = 10_000
    max_unsettled_per_channel: int = 200_000  # deliveries without acknowledgement, whatever the prefetch allows
    max_transaction_messages: int = 100_000
    max_transaction_bytes: int = 256 << 20
    # Publications of one connection whose confirmation waits for the disk; above this it is not read.
    max_unconfirmed_bytes: int = 32 << 20
    # What a client has not taken off its connection; above this it gets no further deliveries.
    write_high_water_bytes: int = 1 << 20
    turn_deliveries: int = 2_048  # handed to a consumer without a prefetch limit in one go
