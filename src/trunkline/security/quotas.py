"""Quotas: how much a client may send, fetch and make the broker work, as Kafka has them.

An entity is a user, a client id, both, or an address (`ip`); the name None is the default of its kind. The quota of a client is
that of the most particular entity that has one, in Kafka's order:

    user and client id, user and default client id, user,
    default user and client id, default user and default client id, default user,
    client id, default client id

Clients that a quota is not divided among (all client ids of a user whose quota is the user's) share it.

A rate is measured over `WINDOW_MS` in samples of a second. Who is above the bound waits as long as it takes for the rate to
come down to it: ((rate - bound) / bound) of the window, as Kafka computes it. So a client can send ten seconds' worth at once.

Memory only; bounded by `MAX_QUOTAS` and `MAX_METERS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

MAX_QUOTAS: Final = 10_000
MAX_METERS: Final = 100_000
SAMPLE_MS: Final = 1_000
WINDOW_MS: Final = 10_000
USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION, CONNECTION = "controller_mutation_rate", "connection_creation_rate"
KEYS: Final[Mapping[str, frozenset[str]]] = {
    USER: frozenset({PRODUCE, FETCH, REQUEST, MUTATION}),
    CLIENT_ID: frozenset({PRODUCE, FETCH, REQUEST, MUTATION}),
    IP: frozenset({CONNECTION}),
}
_WHOLE: Final = frozenset({PRODUCE, FETCH, CONNECTION})

Entity = tuple[tuple[str, str | None], ...]  # in the order of its types' names


class InvalidQuota(ValueError):
    """A quota that cannot be stored; the text says why."""


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """Checked. InvalidQuota if there is no such entity."""
    if not parts:
        raise InvalidQuota("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in KEYS:
            raise InvalidQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidQuota(f"Empty {kind} not supported")
    if IP in parts and len(parts) > 1:
        raise InvalidQuota("An ip has its quotas for itself: it cannot be combined")
    return tuple(sorted(parts.items()))


def check(entity: Entity, key: str, value: float) -> None:
    if key not in KEYS[entity[0][0]]:
        raise InvalidQuota(f"Invalid configuration key {key}")
    if not value > 0 or value == float("inf"):
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    if key in _WHOLE and value != int(value):
        raise InvalidQuota(f"Quota {key} must be a whole number")


class Meter:
    """What was counted in the last `WINDOW_MS`."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()  # when each began, and what was counted in it
        self._total = 0.0

    def add(self, amount: float, now_ms: float) -> None:
        self._forget(now_ms)
        if self._samples and now_ms - self._samples[-1][0] < SAMPLE_MS:
            self._samples[-1][1] += amount
        else:
            self._samples.append([now_ms, amount])
        self._total += amount

    def wait_ms(self, bound: float, now_ms: float, more: float = 0.0) -> float:
        """How long it takes until the rate, with this in it, is the bound; 0 if it is not above it."""
        self._forget(now_ms)
        window_ms = max(WINDOW_MS, now_ms - self._samples[0][0]) if self._samples else WINDOW_MS
        rate = (self._total + more) * 1000 / window_ms
        return (rate - bound) / bound * window_ms if rate > bound else 0.0

    @property
    def empty(self) -> bool:
        return not self._samples

    def _forget(self, now_ms: float) -> None:
        while self._samples and now_ms - self._samples[0][0] >= WINDOW_MS + SAMPLE_MS:
            self._total -= self._samples.popleft()[1]


class Quotas:
    def __init__(self) -> None:
        self.by_entity: dict[Entity, dict[str, float]] = {}
        self.active = False  # whether there are any of clients; asked on every request
        self.of_addresses = False
        self._meters: dict[tuple[str, Entity, str, str], Meter] = {}

    def put(self, entity: Entity, values: Mapping[str, float]) -> None:
        """All quotas of an entity; none removes it."""
        if values and entity not in self.by_entity and len(self.by_entity) >= MAX_QUOTAS:
            raise InvalidQuota(f"there are quotas of {MAX_QUOTAS} entities already")
        if values:
            self.by_entity[entity] = dict(values)
        else:
            self.by_entity.pop(entity, None)
        self._meters.clear()
        self.of_addresses = any(each[0][0] == IP for each in self.by_entity)
        self.active = any(each[0][0] != IP for each in self.by_entity)

    def bound(self, key: str, user: str, client_id: str) -> float | None:
        """A client's quota of this kind; None if it has none."""
        found = self._found(key, user, client_id)
        return None if found is None else found[1]

    def charge(self, key: str, user: str, client_id: str, amount: float, now_ms: float) -> float:
        """Count this; returns how many milliseconds the client has to wait for it."""
        metered = self._metered(key, user, client_id)
        if metered is None:
            return 0.0
        meter, bound = metered
        meter.add(amount, now_ms)
        return meter.wait_ms(bound, now_ms)

    def charge_if_it_fits(self, key: str, user: str, client_id: str, amount: float, now_ms: float) -> float:
        """Count this unless it is too much: then the client has to wait so long, and to ask again."""
        metered = self._metered(key, user, client_id)
        if metered is None:
            return 0.0
        meter, bound = metered
        wait_ms = meter.wait_ms(bound, now_ms, amount)
        if wait_ms and not meter.empty:
            return wait_ms
        meter.add(amount, now_ms)  # what is too much by itself goes out once, or it never would
        return 0.0

    def connection_wait_ms(self, address: str, now_ms: float) -> float:
        """Count a new connection; returns how many milliseconds it comes too soon."""
        for name in (address, None):
            bound = self.by_entity.get(((IP, name),), {}).get(CONNECTION)
            if bound is not None:
                meter = self._meter(CONNECTION, ((IP, name),), address, "")
                wait_ms = meter.wait_ms(bound, now_ms, 1)
                if not wait_ms:
                    meter.add(1, now_ms)
                return wait_ms
        return 0.0

    def _found(self, key: str, user: str, client_id: str) -> tuple[Entity, float] | None:
        for who in (user, None):
            for entity in (((CLIENT_ID, client_id), (USER, who)), ((CLIENT_ID, None), (USER, who)), ((USER, who),)):
                bound = self.by_entity.get(entity, {}).get(key)
                if bound is not None:
                    return entity, bound
        for what in (client_id, None):
            bound = self.by_entity.get(((CLIENT_ID, what),), {}).get(key)
            if bound is not None:
                return ((CLIENT_ID, what),), bound
        return None

    def _metered(self, key: str, user: str, client_id: str) -> tuple[Meter, float] | None:
        found = self._found(key, user, client_id)
        if found is None:
            return None
        entity, bound = found
        kinds = {kind for kind, _ in entity}
        whose = (user if USER in kinds else "", client_id if CLIENT_ID in kinds else "")
        return self._meter(key, entity, *whose), bound

    def _meter(self, key: str, entity: Entity, user: str, client_id: str) -> Meter:
        place = (key, entity, user, client_id)
        meter = self._meters.get(place)
        if meter is None:
            if len(self._meters) >= MAX_METERS:
                self._meters.clear()
            meter = self._meters[place] = Meter()
        return meter
