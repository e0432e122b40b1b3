"""Instructions about deliveries, for which AMQP has no methods: a delay before the next try, a longer lease.

An instruction is a message to the default exchange with the routing key `amq.trunkline.leases`, published on the channel that the
deliveries came on, with JSON as its body:

    {"do": "release", "tags": [1, 2], "ms": 5000}    back to the queue, and ready after so long; without "ms" after its back-off
    {"do": "unseen", "tags": [3]}                    back at once, and as if they had not been delivered: nobody looked at them
    {"do": "extend", "tags": [4], "ms": 30000}       leased for so long from now
    {"do": "settle", "tags": [5]}                    acknowledged, and confirmed when that is on disk
    {"do": "take", "tags": [6], "channel": 3}        on a channel in tx mode: acknowledged with its commit, though they came on
                                                     another channel of the connection

On a channel in confirm mode it is acknowledged when it is carried out, and refused (basic.nack) if one of the deliveries is not
this consumer's any more; the others are dealt with all the same. What is no instruction closes the channel.
"""

from __future__ import annotations

import json
from typing import Final, Protocol

from trunkline.broker.messaging.confirms import Confirms
from trunkline.broker.messaging.settlements import free
from trunkline.cursors.queue import Delivery
from trunkline.protocols.amqp.errors import PRECONDITION_FAILED, FrameError
from trunkline.protocols.amqp.prefetch import ChannelPrefetch

ADDRESS: Final = "amq.trunkline.leases"
_KNOWN: Final = ("release", "unseen", "extend", "settle", "take")
_MAX_MS: Final = 100 * 365 * 24 * 3_600_000


class Leasing(Protocol):
    """What an instruction asks of the channel."""

    unsettled: dict[int, Delivery]
    prefetch: ChannelPrefetch
    confirms: Confirms | None


class TakingOver(Protocol):
    def take_over(self, channel: int, tags: list[int]) -> bool: ...


def carry_out(channel: Leasing, body: bytes) -> bool:
    """False if a delivery is not this channel's any more. FrameError for what is no instruction."""
    do, tags, ms, _ = _read(body)
    if do == "extend":
        extended = [_extend(channel, tag, ms or 0) for tag in tags]
        return all(extended)
    if do == "take":
        raise FrameError(PRECONDITION_FAILED, "channel is not transactional", 60, 40)
    held = [delivery for tag in tags if (delivery := channel.unsettled.pop(tag, None)) is not None]
    lasting = [delivery for delivery in held if delivery.queue.holds(delivery)]
    for delivery in lasting:
        if do == "settle":
            delivery.queue.acknowledge([delivery.offset])
            stored = delivery.queue.committed()
            if stored is not None and channel.confirms is not None:
                channel.confirms.stored.append(stored)
        elif do == "unseen":
            delivery.queue.release([delivery.offset], redelivered=False)
        else:
            delivery.queue.retry([delivery.offset], ms)
    channel.prefetch.freed(free(held))
    return len(lasting) == len(tags)


def take_over(channel: TakingOver, body: bytes) -> None:
    """On a channel in tx mode. FrameError if it cannot be done: the transaction must not be committed then."""
    do, tags, _, source = _read(body)
    if do != "take" or not channel.take_over(source, tags):
        raise FrameError(PRECONDITION_FAILED, "a message of the transaction is not this consumer's any more", 60, 40)


def _extend(channel: Leasing, tag: int, ms: int) -> bool:
    delivery = channel.unsettled.get(tag)
    if delivery is None or not delivery.queue.holds(delivery):
        return False
    return delivery.queue.extend(delivery.offset, ms)


def _read(body: bytes) -> tuple[str, list[int], int | None, int]:
    try:
        asked = json.loads(body)
        do, tags, ms = str(asked["do"]), [int(tag) for tag in asked["tags"]], asked.get("ms")
        if do in _KNOWN and (ms is None or 0 <= int(ms) <= _MAX_MS):
            return do, tags, None if ms is None else int(ms), int(asked.get("channel", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise FrameError(PRECONDITION_FAILED, "this is no instruction about deliveries", 60, 40)
