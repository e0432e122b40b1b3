"""The router against a walk over a plain list of bindings, and its rules one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.reference import amqp_match
from trunkline.routing.errors import (
    AccessRefused,
    ExchangeExists,
    InvalidBinding,
    LimitReached,
    QueueExists,
    UnknownExchange,
    UnknownQueue,
)
from trunkline.routing.fields import Fields
from trunkline.routing.router import Route, Router


@dataclass
class Model:
    """The topology as lists, and routing by looking at all of it."""

    exchanges: dict[str, tuple[str, str | None]] = field(default_factory=lambda: {"": ("default", None)})
    queues: set[str] = field(default_factory=set)
    bindings: set[tuple[str, str, bool, str]] = field(default_factory=set)

    def matches(self, kind: str, binding_key: str, key: str, headers: dict[str, object]) -> bool:
        match kind:
            case "direct":
                return binding_key == key
            case "topic":
                return amqp_match(binding_key, key)
            case "headers":
                return headers.get("h") == binding_key
        return kind == "fanout"

    def route(self, exchange: str, key: str, headers: dict[str, object]) -> set[str]:
        seen: set[str] = set()
        queues: set[str] = set()
        pending = {exchange}
        while pending:
            name = pending.pop()
            seen.add(name)
            kind, alternate = self.exchanges[name]
            hits = {
                (destination, to_exchange)
                for source, destination, to_exchange, binding_key in self.bindings
                if source == name and self.matches(kind, binding_key, key, headers)
            }
            if kind == "default" and key in self.queues:
                hits.add((key, False))
            if not hits and alternate in self.exchanges:
                hits.add((alternate, True))
            queues |= {destination for destination, to_exchange in hits if not to_exchange}
            pending |= {destination for destination, to_exchange in hits if to_exchange} - seen
        return queues


exchange_names = st.sampled_from(["e1", "e2", "e3"])
queue_names = st.sampled_from(["q1", "q2"])
keys = st.sampled_from(["a", "q1", "a.b", "#", "*.b"])
changes = st.one_of(
    st.tuples(
        st.just("declare"),
        exchange_names,
        st.sampled_from(["direct", "fanout", "topic", "headers"]),
        st.one_of(st.none(), exchange_names, st.just("")),
    ),
    st.tuples(st.just("delete"), exchange_names),
    st.tuples(st.just("add"), queue_names),
    st.tuples(st.just("remove"), queue_names),
    st.tuples(st.just("bind"), exchange_names, st.one_of(queue_names, exchange_names), keys),
    st.tuples(st.just("bind"), exchange_names, st.one_of(queue_names, exchange_names), keys),
    st.tuples(st.just("unbind"), exchange_names, st.one_of(queue_names, exchange_names), keys),
)


def apply(change: tuple[str, ...] | tuple[str, str, str, str | None], router: Router[str], model: Model) -> None:
    match change:
        case ("declare", str(name), str(kind), alternate):
            if name not in model.exchanges:
                assert router.declare_exchange(name, kind, alternate=alternate)
                model.exchanges[name] = (kind, alternate)
        case ("delete", str(name)):
            if name in model.exchanges:
                gone = {b for b in model.bindings if b[0] == name or (b[1] == name and b[2])}
                removed = router.delete_exchange(name)
                assert len(removed) == len(gone)
                assert {(r.source, r.destination, r.to_exchange, r.routing_key) for r in removed} == gone
                model.bindings -= gone
                del model.exchanges[name]
        case ("add", str(name)):
            if name not in model.queues:
                router.add_queue(name, name)
                model.queues.add(name)
        case ("remove", str(name)):
            if name in model.queues:
                gone = {b for b in model.bindings if b[1] == name and not b[2]}
                assert {
                    (r.source, r.destination, r.to_exchange, r.routing_key) for r in router.remove_queue(name)
                } == gone
                model.bindings -= gone
                model.queues.discard(name)
        case ("bind" | "unbind" as verb, str(source), str(destination), str(key)):
            to_exchange = destination.startswith("e")
            if source in model.exchanges and destination in (model.exchanges if to_exchange else model.queues):
                binding = (source, destination, to_exchange, key)
                if verb == "bind":
                    made = router.bind(source, destination, key, {"h": key}, to_exchange=to_exchange)
                    assert made == (binding not in model.bindings)
                    model.bindings.add(binding)
                else:
                    removed_one = router.unbind(source, destination, key, {"h": key}, to_exchange=to_exchange)
                    assert removed_one == (binding in model.bindings)
                    model.bindings.discard(binding)


@settings(deadline=None)
@given(st.lists(changes, max_size=30), st.lists(keys, min_size=1, max_size=3), keys)
def test_queues_reached_are_those_of_a_plain_walk(
    steps: list[tuple[str, ...]], routing_keys: list[str], header: str
) -> None:
    router: Router[str] = Router()
    model = Model()
    headers: dict[str, object] = {"h": header}
    for step in steps:
        apply(step, router, model)
        for exchange in model.exchanges:
            for key in routing_keys:
                for _ in ("walked", "remembered"):
                    found = router.route(exchange, key, Fields(headers))
                    assert len(found) == len(set(found))
                    assert set(found) == model.route(exchange, key, headers)
    assert router.binding_count == len(model.bindings)
    listed = {
        (route.source, route.destination, route.to_exchange, route.routing_key)
        for exchange in model.exchanges
        for route in router.bindings(exchange)
    }
    assert listed == model.bindings


def shop() -> Router[str]:
    router: Router[str] = Router()
    for name in ("orders", "audit", "lost"):
        router.add_queue(name, name.upper())
    router.declare_exchange("unrouted", "fanout", internal=True)
    router.declare_exchange("shop", "topic", alternate="unrouted")
    router.bind("shop", "orders", "order.#")
    router.bind("unrouted", "lost")
    return router


def test_the_default_exchange_leads_to_the_queue_of_that_name() -> None:
    router = shop()
    assert router.route("", "orders") == ("ORDERS",)
    assert router.route("", "nowhere") == ()
    router.add_queue("nowhere", "NOW HERE")
    assert router.route("", "nowhere") == ("NOW HERE",)
    router.remove_queue("nowhere")
    assert router.route("", "nowhere") == ()


def test_what_matches_nothing_goes_to_the_alternate_and_its_alternate() -> None:
    router = shop()
    router.declare_exchange("front", "direct", alternate="shop")
    assert router.route("front", "order.new") == ("ORDERS",)
    assert router.route("front", "weather") == ("LOST",)
    router.bind("front", "audit", "weather")
    assert router.route("front", "weather") == ("AUDIT",)


def test_an_alternate_may_be_declared_later_or_never() -> None:
    router: Router[str] = Router()
    router.add_queue("q", "q")
    router.declare_exchange("e", "direct", alternate="later")
    assert router.route("e", "k") == ()
    router.declare_exchange("later", "fanout")
    router.bind("later", "q")
    assert router.route("e", "k") == ("q",)
    router.delete_exchange("later")
    assert router.route("e", "k") == ()


def test_the_default_exchange_can_be_an_alternate() -> None:
    router: Router[str] = Router()
    router.declare_exchange("e", "direct", alternate="")
    assert router.route("e", "q") == ()
    router.add_queue("q", "q")
    assert router.route("e", "q") == ("q",)


def test_cycles_end_and_each_queue_comes_once() -> None:
    router: Router[str] = Router()
    router.add_queue("q", "q")
    for name in ("a", "b"):
        router.declare_exchange(name, "fanout")
        router.bind(name, "q")
    router.bind("a", "b", to_exchange=True)
    router.bind("b", "a", to_exchange=True)
    router.bind("a", "a", to_exchange=True)
    assert router.route("a", "") == ("q",)
    assert len(router.delete_exchange("a")) == 4
    assert router.bindings_to("q") == [Route("b", "q", False, "", {})]


def test_clients_cannot_publish_to_an_internal_exchange_but_the_broker_can() -> None:
    router = shop()
    with pytest.raises(AccessRefused, match="internal"):
        router.route("unrouted", "x")
    assert router.forward("unrouted", ["x"]) == ("LOST",)
    with pytest.raises(AccessRefused, match="internal"):
        router.route("unrouted", "x")


def test_several_keys_reach_each_queue_once_and_the_alternate_only_if_none_matches() -> None:
    router = shop()
    assert router.forward("shop", ["order.a", "order.b", "weather"]) == ("ORDERS",)
    assert router.forward("shop", ["weather", "sports"]) == ("LOST",)


def test_routes_are_remembered_until_the_topology_changes() -> None:
    router = shop()
    first = router.route("shop", "order.new")
    assert router.route("shop", "order.new") is first
    version = router.version
    router.add_queue("more", "MORE")
    assert router.route("shop", "order.new") is first
    assert router.version == version
    router.bind("shop", "audit", "#")
    assert router.version > version
    assert set(router.route("shop", "order.new")) == {"ORDERS", "AUDIT"}


def test_routes_through_headers_are_decided_by_each_message() -> None:
    router = shop()
    router.declare_exchange("by-header", "headers")
    router.bind("by-header", "audit", "", {"audited": True})
    router.bind("shop", "by-header", "#", to_exchange=True)
    assert router.route("shop", "order.new", Fields({"audited": True})) == ("ORDERS", "AUDIT")
    assert router.route("shop", "order.new", Fields({"audited": False})) == ("ORDERS",)
    assert router.route("shop", "order.new") == ("ORDERS",)


def test_declaring_again_is_idempotent_and_otherwise_refused() -> None:
    router = shop()
    assert not router.declare_exchange("shop", "topic", alternate="unrouted")
    with pytest.raises(ExchangeExists):
        router.declare_exchange("shop", "direct", alternate="unrouted")
    with pytest.raises(ExchangeExists):
        router.declare_exchange("", "topic")
    with pytest.raises(QueueExists):
        router.add_queue("orders", "again")


def test_unknown_names_and_the_default_exchange_are_refused() -> None:
    router = shop()
    for unknown_exchange in (
        lambda: router.route("nope", "k"),
        lambda: router.bind("nope", "orders"),
        lambda: router.bind("shop", "nope", to_exchange=True),
        lambda: router.delete_exchange("nope"),
    ):
        with pytest.raises(UnknownExchange):
            unknown_exchange()
    for unknown_queue in (lambda: router.bind("shop", "nope"), lambda: router.remove_queue("nope")):
        with pytest.raises(UnknownQueue):
            unknown_queue()
    for refused in (
        lambda: router.bind("", "orders", "k"),
        lambda: router.unbind("", "orders", "k"),
        lambda: router.bind("shop", "", to_exchange=True),
        lambda: router.delete_exchange(""),
    ):
        with pytest.raises(AccessRefused):
            refused()


def test_limits_hold_and_a_refusal_changes_nothing() -> None:
    router: Router[str] = Router(max_exchanges=2, max_bindings=1)
    router.add_queue("q", "q")
    router.declare_exchange("e", "headers")
    with pytest.raises(LimitReached):
        router.declare_exchange("f", "direct")
    with pytest.raises(InvalidBinding):
        router.bind("e", "q", "", {"x-match": "none"})
    assert router.binding_count == 0
    assert router.bindings_to("q") == []
    assert router.bind("e", "q")
    assert not router.bind("e", "q")
    with pytest.raises(LimitReached):
        router.bind("e", "q", "other")
    assert router.has_bindings("e")
    assert router.unbind("e", "q")
    assert not router.has_bindings("e")
    assert router.bind("e", "q", "other")
