"""RabbitMQ's management API, asked as its tools ask it, beside clients of AMQP on the same broker."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest

from tests.integration.management.api import Api, part
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

Unique = Callable[[str], str]


@contextmanager
def channel_of(server: ServerProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port_of("amqp")))
    try:
        yield connection.channel()
    finally:
        connection.close()


def test_a_queue_is_made_looked_at_and_deleted(api: Api, unique: Unique) -> None:
    name = unique("q/ü %")
    path = f"/api/queues/%2F/{part(name)}"
    assert api.ask("GET", path).status == 404
    wish = {"durable": True, "auto_delete": False, "arguments": {"x-max-priority": 5}}
    assert api.ask("PUT", path, wish).status == 201
    assert api.ask("PUT", path, wish).status == 204
    found = api.get(path)
    assert (found["name"], found["vhost"], found["arguments"]) == (name, "/", {"x-max-priority": 5})
    assert (found["messages"], found["messages_ready"], found["messages_unacknowledged"]) == (0, 0, 0)
    refused = api.ask("PUT", path, {"durable": False})
    assert refused.status == 400
    assert "inequivalent arg 'durable'" in refused.body["reason"]
    assert api.ask("DELETE", path).status == 204
    assert api.ask("DELETE", path).status == 404


def test_what_is_published_over_http_is_consumed_over_amqp_with_its_properties(
    api: Api, managed: ServerProcess, unique: Unique
) -> None:
    queue, exchange = unique("q"), unique("x")
    assert api.ask("PUT", f"/api/queues/%2F/{queue}", {}).status == 201
    assert api.ask("PUT", f"/api/exchanges/%2F/{exchange}", {"type": "topic"}).status == 201
    made = api.ask("POST", f"/api/bindings/%2F/e/{exchange}/q/{queue}", {"routing_key": "a.#"})
    assert made.status == 201
    assert made.headers["location"].endswith("a.%23")
    message = {
        "properties": {"content_type": "text/plain", "delivery_mode": 2, "priority": 3, "headers": {"n": 7, "s": "t"}},
        "routing_key": "a.b",
        "payload": base64.b64encode(b"\x00\xff").decode(),
        "payload_encoding": "base64",
    }
    assert api.ask("POST", f"/api/exchanges/%2F/{exchange}/publish", message).body == {"routed": True}
    message["routing_key"] = "c"
    assert api.ask("POST", f"/api/exchanges/%2F/{exchange}/publish", message).body == {"routed": False}
    with channel_of(managed) as channel:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        assert body == b"\x00\xff"
        assert (method.exchange, method.routing_key) == (exchange, "a.b")
        assert (properties.content_type, properties.delivery_mode, properties.priority) == ("text/plain", 2, 3)
        assert properties.headers == {"n": 7, "s": "t"}


def test_what_is_published_over_amqp_is_taken_over_http_and_put_back_or_not(
    api: Api, managed: ServerProcess, unique: Unique
) -> None:
    queue = unique("q")
    with channel_of(managed) as channel:
        channel.queue_declare(queue)
        channel.confirm_delivery()
        properties = pika.BasicProperties(content_type="text/x", headers={"k": [1, "two"]}, message_id="m")
        for body in (b"one", b"\xff"):
            channel.basic_publish("", queue, body, properties)

        def take(mode: str) -> list[dict[str, Any]]:
            asked = {"count": 5, "ackmode": mode, "encoding": "auto"}
            answer = api.ask("POST", f"/api/queues/%2F/{queue}/get", asked)
            assert answer.status == 200, answer
            return list(answer.body)

        first, second = take("ack_requeue_true")
        assert (first["payload"], first["payload_encoding"], first["redelivered"]) == ("one", "string", False)
        assert (second["payload"], second["payload_encoding"]) == (base64.b64encode(b"\xff").decode(), "base64")
        assert first["properties"] == {"content_type": "text/x", "message_id": "m", "headers": {"k": [1, "two"]}}
        assert (first["routing_key"], first["message_count"], second["message_count"]) == (queue, 1, 0)
        assert [each["redelivered"] for each in take("ack_requeue_false")] == [True, True]
        assert take("ack_requeue_true") == []


def test_bindings_are_listed_and_removed_by_their_key(api: Api, unique: Unique) -> None:
    queue, exchange = unique("q"), unique("x")
    api.ask("PUT", f"/api/queues/%2F/{queue}", {})
    api.ask("PUT", f"/api/exchanges/%2F/{exchange}", {"type": "headers"})
    between = f"/api/bindings/%2F/e/{exchange}/q/{queue}"
    api.ask("POST", between, {"routing_key": "", "arguments": {"x-match": "all", "a": 1}})
    api.ask("POST", between, {"routing_key": "k/1", "arguments": {}})
    found = {each["properties_key"]: each for each in api.get(between)}
    assert len(found) == 2
    assert found["k%2F1"]["routing_key"] == "k/1"
    for key in found:
        assert api.get(f"{between}/{part(key)}")["properties_key"] == key
        assert api.ask("DELETE", f"{between}/{part(key)}").status == 204
    assert api.get(between) == []
    own = api.get(f"/api/queues/%2F/{queue}/bindings")
    assert [(each["source"], each["routing_key"]) for each in own] == [("", queue)]


def test_lists_come_by_pages_filtered_and_sorted(api: Api, unique: Unique) -> None:
    prefix = unique("page")
    names = [f"{prefix}-{number:02}" for number in range(12)]
    for name in names:
        api.ask("PUT", f"/api/queues/%2F/{name}", {})
    page = api.get(f"/api/queues/%2F?page=2&page_size=5&name={prefix}&columns=name,messages")
    assert page["items"] == [{"name": name, "messages": 0} for name in names[5:10]]
    assert (page["page"], page["page_count"], page["filtered_count"], page["item_count"]) == (2, 3, 12, 5)
    assert page["total_count"] >= 12
    found = api.get(f"/api/queues?page=1&name={prefix}-0[0-3]$&use_regex=true&sort=name&sort_reverse=true")
    assert [each["name"] for each in found["items"]] == names[3::-1]
    assert api.ask("GET", f"/api/queues?page=9&name={prefix}").status == 400
    assert api.ask("GET", "/api/queues?page=1&name=(&use_regex=true").status == 400


def test_rates_tell_what_goes_on(api: Api, managed: ServerProcess, unique: Unique) -> None:
    queue = unique("q")
    with channel_of(managed) as channel:
        channel.queue_declare(queue)
        api.get(f"/api/queues/%2F/{queue}")
        channel.confirm_delivery()

        def rate() -> float:
            channel.basic_publish("", queue, b"x")
            stats = api.get(f"/api/queues/%2F/{queue}")["message_stats"]
            return float(stats["publish_details"]["rate"])

        wait_until(lambda: rate() > 0, what="a rate above zero")
    found = api.get(f"/api/queues/%2F/{queue}")
    assert found["messages_ready"] == found["message_stats"]["publish"] > 0


def test_users_and_permissions(api: Api, managed: ServerProcess, unique: Unique) -> None:
    name = unique("user")
    assert api.ask("PUT", f"/api/users/{name}", {"password": "secret", "tags": "management"}).status == 201
    assert api.get(f"/api/users/{name}")["tags"] == ["management"]
    theirs = Api(api.port, name, "secret")
    assert theirs.get("/api/whoami")["name"] == name
    assert theirs.ask("GET", "/api/users").status == 401
    assert theirs.ask("GET", "/api/queues/%2F").status == 401
    wish = {"configure": "^mine", "write": ".*", "read": ".*"}
    assert api.ask("PUT", f"/api/permissions/%2F/{name}", wish).status == 201
    assert api.get(f"/api/permissions/%2F/{name}") == {"user": name, "vhost": "/", **wish}
    assert theirs.ask("PUT", f"/api/queues/%2F/mine{name}", {}).status == 201
    assert theirs.ask("PUT", f"/api/queues/%2F/other{name}", {}).status == 401
    assert Api(api.port, name, "wrong").ask("GET", "/api/whoami").status == 401
    assert api.ask("DELETE", f"/api/users/{name}").status == 204
    assert theirs.ask("GET", "/api/whoami").status == 401


def test_definitions_go_out_and_in_again(api: Api, unique: Unique) -> None:
    queue = unique("q")
    api.ask("PUT", f"/api/queues/%2F/{queue}", {"durable": True})
    exported = api.get("/api/definitions")
    assert queue in {each["name"] for each in exported["queues"]}
    api.ask("DELETE", f"/api/queues/%2F/{queue}")
    assert api.ask("POST", "/api/definitions", exported).status == 204
    assert api.get(f"/api/queues/%2F/{queue}")["durable"] is True
    of_vhost = api.get("/api/definitions/%2F")
    assert all("vhost" not in each for each in of_vhost["queues"])


@pytest.mark.parametrize(
    "path",
    [
        "overview", "nodes", "nodes/trunkline@localhost", "nodes/trunkline@localhost/memory", "cluster-name", "vhosts", "exchanges",
        "bindings", "queues", "users", "permissions", "policies", "operator-policies", "parameters", "global-parameters",
        "feature-flags", "deprecated-features", "vhost-limits", "user-limits", "shovels", "federation-links", "aliveness-test/%2F",
        "health/checks/alarms", "health/checks/local-alarms", "health/checks/virtual-hosts", "health/checks/protocol-listener/amqp",
        "whoami", "auth", "definitions", "listeners",
    ],
)  # fmt: skip
def test_what_tools_look_at_is_there(api: Api, path: str) -> None:
    assert api.get(f"/api/{path}") is not None


def test_the_fields_that_exporters_and_scalers_read_are_there(api: Api, unique: Unique) -> None:
    api.ask("PUT", f"/api/queues/%2F/{unique('q')}", {})
    overview = api.get("/api/overview")
    for name in (
        "rabbitmq_version",
        "cluster_name",
        "node",
        "listeners",
        "message_stats",
        "queue_totals",
        "object_totals",
    ):
        assert name in overview, name
    (node,) = api.get("/api/nodes")
    for name in (
        "mem_used",
        "mem_limit",
        "disk_free",
        "disk_free_limit",
        "fd_used",
        "fd_total",
        "running",
        "uptime",
        "sockets_used",
    ):
        assert name in node, name
    queue = api.get("/api/queues/%2F")[0]
    for name in (
        "messages",
        "messages_ready",
        "messages_unacknowledged",
        "consumers",
        "memory",
        "message_stats",
        "state",
    ):
        assert name in queue, name
    assert {"publish_details", "deliver_get_details", "ack_details"} <= queue["message_stats"].keys()


def test_what_does_not_exist_here_is_refused_with_a_reason(api: Api) -> None:
    refused = api.ask("PUT", "/api/policies/%2F/p", {"pattern": ".*", "definition": {}})
    assert refused.status == 400
    assert "arguments" in refused.body["reason"]
    assert api.ask("GET", "/api/nowhere").status == 404
    assert api.ask("POST", "/api/overview", {}).status == 405
    assert api.ask("PUT", "/api/queues/%2F/q", raw=b"{no json").status == 400
    assert api.ask("PUT", "/api/queues/%2F/q", raw=b"[1]").status == 400
