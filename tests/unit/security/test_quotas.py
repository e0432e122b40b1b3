"""Quotas: whose holds for a client, and how long one waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.security.quotas import (
    CONNECTION,
    FETCH,
    PRODUCE,
    REQUEST,
    Entity,
    InvalidQuota,
    Quotas,
    check,
    entity_of,
)


def entity(**parts: str | None) -> Entity:
    return entity_of({name.replace("_", "-"): value for name, value in parts.items()})


# Kafka's order of precedence, the most particular first.
ORDER = (
    entity(user="bob", client_id="c"),
    entity(user="bob", client_id=None),
    entity(user="bob"),
    entity(user=None, client_id="c"),
    entity(user=None, client_id=None),
    entity(user=None),
    entity(client_id="c"),
    entity(client_id=None),
)


@given(st.sets(st.sampled_from(range(len(ORDER)))))
def test_the_most_particular_quota_holds(present: set[int]) -> None:
    quotas = Quotas()
    for place in present:
        quotas.put(ORDER[place], {PRODUCE: float(place + 1)})
    assert quotas.bound(PRODUCE, "bob", "c") == (min(present) + 1 if present else None)
    assert quotas.bound(FETCH, "bob", "c") is None
    assert quotas.active is bool(present)


def test_who_is_above_the_bound_waits_until_the_rate_is_the_bound() -> None:
    quotas = Quotas()
    quotas.put(entity(user="bob"), {PRODUCE: 100.0})
    assert quotas.charge(PRODUCE, "bob", "c", 1_000, 0) == 0, "a window's worth at once"
    assert quotas.charge(PRODUCE, "bob", "c", 500, 0) == 5_000
    assert quotas.charge(PRODUCE, "bob", "other", 0, 0) == 5_000, "all of the user's clients share it"
    assert quotas.charge(PRODUCE, "alice", "c", 10_000, 0) == 0
    assert quotas.charge(PRODUCE, "bob", "c", 0, 11_000) == 0


def test_what_is_fetched_is_not_counted_if_it_has_to_wait() -> None:
    quotas = Quotas()
    quotas.put(entity(client_id=None), {FETCH: 100.0})
    assert quotas.charge_if_it_fits(FETCH, "bob", "a", 900, 0) == 0
    assert quotas.charge_if_it_fits(FETCH, "bob", "a", 200, 0) == pytest.approx(1_000)
    assert quotas.charge_if_it_fits(FETCH, "bob", "a", 100, 0) == 0
    assert quotas.charge_if_it_fits(FETCH, "bob", "b", 5_000, 0) == 0, "by itself it would never fit"
    assert quotas.charge_if_it_fits(FETCH, "bob", "b", 1, 0) > 0


def test_addresses_have_a_rate_of_connections() -> None:
    quotas = Quotas()
    quotas.put(entity(ip=None), {CONNECTION: 1.0})
    quotas.put(entity(ip="10.0.0.1"), {CONNECTION: 2.0})
    assert quotas.of_addresses
    assert not quotas.active
    for address, allowed in (("10.0.0.1", 20), ("10.0.0.2", 10), ("10.0.0.3", 10)):
        found = [quotas.connection_wait_ms(address, 0) for _ in range(allowed + 1)]
        assert found[:-1] == [0] * allowed
        assert found[-1] > 0


@pytest.mark.parametrize(
    "parts", [{}, {"moon": "x"}, {"user": ""}, {"ip": "10.0.0.1", "user": "bob"}, {"ip": "1", "client-id": None}]
)
def test_entities_that_do_not_exist_are_refused(parts: dict[str, str | None]) -> None:
    with pytest.raises(InvalidQuota):
        entity_of(parts)


@pytest.mark.parametrize(
    ("of", "key", "value"),
    [
        (entity(user="bob"), CONNECTION, 1.0),
        (entity(ip="1"), PRODUCE, 1.0),
        (entity(user="bob"), "moon", 1.0),
        (entity(user="bob"), PRODUCE, 0.0),
        (entity(user="bob"), PRODUCE, 1.5),
        (entity(user="bob"), REQUEST, float("nan")),
        (entity(user="bob"), REQUEST, float("inf")),
    ],
)
def test_quotas_that_make_no_sense_are_refused(of: Entity, key: str, value: float) -> None:
    with pytest.raises(InvalidQuota):
        check(of, key, value)
    check(entity(user="bob"), REQUEST, 0.5)
