"""Connections and sessions, as the administration lists and ends them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pytest

from trunkline.broker.administration.connections import About, Connections
from trunkline.broker.administration.sessions import MAX_LISTED, Sessions
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.routing.dialect import MQTT
from trunkline.security.principal import Principal


class Client:
    listener, host, port, since_ms = "amqp", "10.0.0.7", 4711, 1_000

    def __init__(self, number: int, about: About | None = None) -> None:
        self.number = number
        self._about = about
        self.ended_for: list[str] = []

    def about(self) -> About | None:
        return self._about

    def force_close(self, reason: str) -> None:
        self.ended_for.append(reason)


class Server:
    def __init__(self, clients: Iterable[Client]) -> None:
        self.clients = list(clients)

    def live_connections(self) -> Iterable[Client]:
        return self.clients


def test_connections_of_all_servers_are_listed_oldest_first() -> None:
    connections = Connections()
    numbers = [connections.next_number() for _ in range(3)]
    assert len(set(numbers)) == 3
    known = About("AMQP 0-9-1", Principal("ann"), {"channels": 2})
    connections.include(Server([Client(numbers[2], known), Client(numbers[0])]))
    connections.include(Server([Client(numbers[1])]))
    listed = connections.listed()
    assert [each["id"] for each in listed] == sorted(numbers)
    assert listed[2] == {
        "id": numbers[2],
        "protocol": "AMQP 0-9-1",
        "listener": "amqp",
        "user": "ann",
        "peer_host": "10.0.0.7",
        "peer_port": 4711,
        "connected_at_ms": 1_000,
        "details": {"channels": 2},
    }
    assert (listed[0]["protocol"], listed[0]["user"], listed[0]["details"]) == ("amqp", None, {})
    assert connections.one(numbers[1]) == listed[1]


def test_one_connection_is_closed_by_its_number() -> None:
    connections, clients = Connections(), [Client(1), Client(2)]
    connections.include(Server(clients))
    connections.close(2, "enough")
    assert [each.ended_for for each in clients] == [[], ["enough"]]
    for ask in (lambda: connections.close(3, ""), lambda: connections.one(3)):
        with pytest.raises(Refused) as caught:
            ask()
        assert caught.value.reason is Reason.NOT_FOUND


class Keeper:
    def __init__(self, names: Sequence[str], retained: Sequence[str] = ()) -> None:
        self.names = list(names)
        self.topics = list(retained)

    def session_names(self) -> Collection[str]:
        return self.names

    def describe_session(self, name: str, *, whole: bool) -> dict[str, object] | None:
        return {"client_id": name, "whole": whole} if name in self.names else None

    def end_session(self, name: str) -> bool:
        if name not in self.names:
            return False
        self.names.remove(name)
        return True

    def retained_names(self, topic_filter: str) -> Sequence[str]:
        MQTT.pattern_levels(topic_filter)
        return [each for each in self.topics if topic_filter in ("#", each)]

    def describe_retained(self, topic: str) -> dict[str, object] | None:
        return {"topic": topic}

    def forget_retained(self, topics: Sequence[str]) -> None:
        self.topics = [each for each in self.topics if each not in topics]


def test_without_a_listener_that_has_sessions_there_are_none() -> None:
    sessions = Sessions()
    assert sessions.listed() == {"total": 0, "sessions": []}
    assert sessions.retained() == {"total": 0, "messages": []}
    assert sessions.clear_retained("#") == 0
    with pytest.raises(Refused):
        sessions.one("a")
    with pytest.raises(Refused):
        sessions.end("a")


def test_sessions_are_listed_looked_at_and_ended() -> None:
    sessions, keeper = Sessions(), Keeper([f"c{number:05}" for number in range(MAX_LISTED + 5)])
    sessions.kept_by(keeper)
    listed = sessions.listed()
    assert listed["total"] == MAX_LISTED + 5
    assert isinstance(listed["sessions"], list)
    assert len(listed["sessions"]) == MAX_LISTED
    assert sessions.listed("00007") == {"total": 1, "sessions": [{"client_id": "c00007", "whole": False}]}
    assert sessions.one("c00007") == {"client_id": "c00007", "whole": True}
    sessions.end("c00007")
    with pytest.raises(Refused) as caught:
        sessions.end("c00007")
    assert caught.value.reason is Reason.NOT_FOUND


def test_retained_messages_are_listed_and_cleared() -> None:
    sessions, keeper = Sessions(), Keeper([], ["b", "a"])
    sessions.kept_by(keeper)
    assert sessions.retained() == {"total": 2, "messages": [{"topic": "a"}, {"topic": "b"}]}
    assert sessions.clear_retained("a") == 1
    assert keeper.topics == ["b"]
    with pytest.raises(Refused) as caught:
        sessions.clear_retained("a/#/b")
    assert caught.value.reason is Reason.PRECONDITION_FAILED
