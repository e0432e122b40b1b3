"""Consumers that messages are pushed to, and how messages are dealt to them.

Of those with credit, the ones with the highest priority get messages, one each in turn, beginning where the last dealing ended.
With a single active consumer only the one that came first does. An exclusive consumer is alone. Consumers may draw on a
common pool of credit.

Where some are selective, a consumer may have credit and yet nothing that it wants: then messages go on to those of lower priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from trunkline.cursors.queue.errors import ConsumerRefused
from trunkline.cursors.queue.line import Line, Taken
from trunkline.cursors.queue.message import Delivery
from trunkline.cursors.queue.selective_line import Lane, SelectiveLine


class CreditPool(Protocol):
    """Credit that several consumers of a queue have in common."""

    @property
    def left(self) -> int: ...


class QueueConsumer(Protocol):
    @property
    def priority(self) -> int: ...

    @property
    def pool(self) -> CreditPool | None:
        """What its credit is drawn from, if others draw on it too. Asked for after `credit`."""
        ...

    def credit(self) -> int:
        """How many more messages it takes now."""
        ...

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take these, in order. Called at most once per turn. Must not raise."""
        ...

    def cancelled(self, reason: str) -> None:
        """The queue is gone; nothing more will come."""
        ...


class Registration:
    __slots__ = ("consumer", "exclusive", "lane", "lease_ms", "no_ack")

    def __init__(
        self, consumer: QueueConsumer, *, no_ack: bool, exclusive: bool, lane: Lane | None, lease_ms: int | None = None
    ) -> None:
        self.lane = lane  # None: it takes everything
        self.consumer = consumer
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.lease_ms = lease_ms  # None: as the queue's settings say


class Consumers:
    def __init__(self, queue_name: str, *, single_active: bool, by_key: bool) -> None:
        self._queue_name = queue_name
        self._single_active = single_active
        self._by_key = by_key
        self._registered: list[Registration] = []
        self._turn = 0
        self.selective = 0  # consumers with a selector

    def __len__(self) -> int:
        return len(self._registered)

    def __iter__(self) -> Iterator[QueueConsumer]:
        return iter([registration.consumer for registration in self._registered])

    @property
    def active(self) -> QueueConsumer | None:
        """The single active consumer."""
        return self._registered[0].consumer if self._single_active and self._registered else None

    @property
    def exclusive(self) -> bool:
        return bool(self._registered) and self._registered[0].exclusive

    def check_free(self, *, exclusive: bool) -> None:
        """Whether one more may come, alone or not."""
        if self.exclusive:
            raise ConsumerRefused(f"queue {self._queue_name!r} has an exclusive consumer")
        if exclusive and self._registered:
            raise ConsumerRefused(f"queue {self._queue_name!r} has consumers already")

    def add(
        self,
        consumer: QueueConsumer,
        *,
        no_ack: bool,
        exclusive: bool,
        lane: Lane | None = None,
        lease_ms: int | None = None,
    ) -> None:
        self.check_free(exclusive=exclusive)
        self._registered.append(
            Registration(consumer, no_ack=no_ack, exclusive=exclusive, lane=lane, lease_ms=lease_ms)
        )
        self.selective += lane is not None

    def remove(self, consumer: QueueConsumer) -> Registration | None:
        for place, entry in enumerate(self._registered):
            if entry.consumer is consumer:
                del self._registered[place]
                if place < self._turn:
                    self._turn -= 1  # so that the turn stays with whom it was
                self.selective -= entry.lane is not None
                return entry
        return None

    def willing(self) -> list[tuple[Registration, int]]:
        """Those who shall get the next messages, with their credit, in the order of their turn."""
        registered = self._registered
        if not registered:
            return []
        if self._single_active or len(registered) == 1:
            credit = registered[0].consumer.credit()
            return [(registered[0], credit)] if credit > 0 else []
        self._turn %= len(registered)
        found: list[tuple[Registration, int]] = []
        best = 0
        for registration in registered[self._turn :] + registered[: self._turn]:
            credit = registration.consumer.credit()
            if credit <= 0:
                continue
            priority = registration.consumer.priority
            if found and priority < best:
                continue
            if found and priority > best:
                found.clear()
            best = priority
            found.append((registration, credit))
        return found

    def deal(self, line: Line, willing: list[tuple[Registration, int]], limit: int, max_bytes: int) -> list[tuple[Registration, Taken]]:  # fmt: skip
        """Take messages out of the line for those that are willing; at most `limit` and about `max_bytes`."""
        if len(willing) == 1:
            registration, credit = willing[0]
            taken = line.take(min(credit, limit), max_bytes, registration.consumer)
            return [] if taken is None else [(registration, taken)]
        credits = _Credits(willing)
        if self._by_key:
            return self._deal_by_key(line, willing, credits, limit, max_bytes)
        taken = line.take(min(line.count, limit, credits.total()), max_bytes, None)
        if taken is None:
            return []
        return self._split(taken, willing, credits)

    def _split(
        self, taken: Taken, willing: list[tuple[Registration, int]], credits: _Credits
    ) -> list[tuple[Registration, Taken]]:
        count, ways = len(taken), len(willing)
        if not credits.pooled and all(credit * ways >= count + ways for _, credit in willing):
            self._pass_turn(willing[(count - 1) % ways][0])
            return [(entry, taken.every(place, ways)) for place, (entry, _) in enumerate(willing[:count])]
        shares: list[list[int]] = [[] for _ in willing]
        place = -1
        for number in range(count):
            place = (place + 1) % ways
            while not credits.has(place):
                place = (place + 1) % ways
            shares[place].append(number)
            credits.spend(place)
        self._pass_turn(willing[place][0])
        return [(entry, taken.picked(share)) for (entry, _), share in zip(willing, shares, strict=True) if share]

    def _deal_by_key(self, line: Line, willing: list[tuple[Registration, int]], credits: _Credits, limit: int, max_bytes: int) -> list[tuple[Registration, Taken]]:  # fmt: skip
        """One at a time, because who may have a message depends on its key."""
        shares: dict[int, list[Taken]] = {}
        size = count = idle = place = 0
        while idle < len(willing) and count < limit and size < max_bytes:
            entry = willing[place][0]
            taken = line.take(1, max_bytes, entry.consumer) if credits.has(place) else None
            if taken is None:
                idle += 1
            else:
                idle = 0
                credits.spend(place)
                count += 1
                size += taken.size_bytes
                shares.setdefault(place, []).append(taken)
                self._pass_turn(entry)
            place = (place + 1) % len(willing)
        return [(willing[place][0], _joined_all(parts)) for place, parts in shares.items()]

    def deal_selectively(self, line: SelectiveLine, limit: int, max_bytes: int) -> list[tuple[Registration, Taken]]:
        """The same where some are selective: one message at a time, because who may have it depends on what it is."""
        dealt: list[tuple[Registration, Taken]] = []
        for willing in self._by_priority():
            credits = _Credits(willing)
            shares: dict[int, list[Taken]] = {}
            idle = place = 0
            while idle < len(willing) and limit > 0 and max_bytes > 0:
                entry = willing[place][0]
                taken = None
                if credits.has(place):
                    taken = line.take(1, 0, None) if entry.lane is None else line.take_from(entry.lane, 1, 0)
                if taken is None:
                    idle += 1
                else:
                    idle = 0
                    credits.spend(place)
                    limit -= 1
                    max_bytes -= taken.size_bytes
                    shares.setdefault(place, []).append(taken)
                    self._pass_turn(entry)
                place = (place + 1) % len(willing)
            dealt += [(willing[place][0], _joined_all(parts)) for place, parts in shares.items()]
        return dealt

    def _by_priority(self) -> list[list[tuple[Registration, int]]]:
        """All with credit, those of the highest priority first, in the order of their turn."""
        registered = self._registered[:1] if self._single_active else self._registered
        self._turn %= max(len(registered), 1)
        levels: dict[int, list[tuple[Registration, int]]] = {}
        for registration in registered[self._turn :] + registered[: self._turn]:
            credit = registration.consumer.credit()
            if credit > 0:
                levels.setdefault(registration.consumer.priority, []).append((registration, credit))
        return [levels[priority] for priority in sorted(levels, reverse=True)]

    def _pass_turn(self, last: Registration) -> None:
        self._turn = self._registered.index(last) + 1


class _Credits:
    """What is left of the credit of each of the willing, and of the pools that they draw on."""

    __slots__ = ("_left", "_left_in", "_pools", "pooled")

    def __init__(self, willing: list[tuple[Registration, int]]) -> None:
        self._left = [credit for _, credit in willing]
        self._pools = [registration.consumer.pool for registration, _ in willing]
        self._left_in = {pool: pool.left for pool in self._pools if pool is not None}
        self.pooled = bool(self._left_in)

    def total(self) -> int:
        if not self.pooled:
            return sum(self._left)
        alone = sum(left for left, pool in zip(self._left, self._pools, strict=True) if pool is None)
        drawn = dict.fromkeys(self._left_in, 0)
        for left, pool in zip(self._left, self._pools, strict=True):
            if pool is not None:
                drawn[pool] += left
        return alone + sum(min(left, self._left_in[pool]) for pool, left in drawn.items())

    def has(self, place: int) -> bool:
        pool = self._pools[place]
        return self._left[place] > 0 and (pool is None or self._left_in[pool] > 0)

    def spend(self, place: int) -> None:
        self._left[place] -= 1
        pool = self._pools[place]
        if pool is not None:
            self._left_in[pool] -= 1


def _joined_all(parts: list[Taken]) -> Taken:
    offsets = [part.offsets[0] for part in parts]
    priors = [0 if part.priors is None else part.priors[0] for part in parts]
    return Taken(offsets, [part.messages[0] for part in parts], priors, sum(part.size_bytes for part in parts))
