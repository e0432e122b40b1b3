"""Our own API: one record seen as stream, queue and topic; searched, followed live, replayed; groups and their offsets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import paho.mqtt.client
import paho.mqtt.enums
import paho.mqtt.publish
import pika
from confluent_kafka import Consumer, Producer

from tests.integration.management.api import Api, part
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

Unique = Callable[[str], str]


def produce(server: ServerProcess, topic: str, *values: bytes, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for value in values:
        producer.produce(topic, value, key=key, headers={"kind": b"test"})
    assert producer.flush(30) == 0


def values_of(page: Any) -> list[str]:
    return [each["value"]["text"] for each in page["records"]]


def test_a_topic_is_made_changed_and_deleted(api: Api, unique: Unique) -> None:
    name = unique("t")
    wish = {"name": name, "partitions": 2, "config": {"retention.ms": 1000}}
    made = api.ask("POST", "/api/v1/topics", wish)
    assert (made.status, len(made.body["partitions"])) == (201, 2)
    assert api.ask("POST", "/api/v1/topics", wish).status == 409
    changed = api.ask(
        "PATCH",
        f"/api/v1/topics/{name}",
        {"partitions": 3, "config": {"retention.ms": None, "cleanup.policy": "compact"}},
    )
    assert changed.body["config"] == {"cleanup.policy": "compact"}
    assert len(changed.body["partitions"]) == 3
    assert api.ask("PATCH", f"/api/v1/topics/{name}", {"config": {"no.such": 1}}).status == 400
    assert api.ask("DELETE", f"/api/v1/topics/{name}").status == 204
    assert api.ask("GET", f"/api/v1/topics/{name}").status == 404
    assert api.ask("DELETE", "/api/v1/topics/__topology").status == 400


def test_records_are_found_by_offset_time_key_header_and_text(api: Api, managed: ServerProcess, unique: Unique) -> None:
    topic = unique("t")
    produce(managed, topic, b'{"n": 1}', b"plain", key=b"k1")
    produce(managed, topic, b"other", b"\xff\xfe", key=b"k2")
    page = api.get(f"/api/v1/topics/{topic}/records?offset=0")
    assert [each["value"].get("kind") for each in page["records"]] == ["json", "text", "text", None]
    assert page["records"][3]["value"]["base64"] == "//4="
    assert (page["start"], page["end"], page["next"]) == (0, 4, 4)
    assert values_of(api.get(f"/api/v1/topics/{topic}/records?count=2&offset=1")) == ["plain", "other"]
    assert values_of(api.get(f"/api/v1/topics/{topic}/records?offset=0&key=k1")) == ['{"n": 1}', "plain"]
    assert values_of(api.get(f"/api/v1/topics/{topic}/records?offset=0&text=lain")) == ["plain"]
    assert len(api.get(f"/api/v1/topics/{topic}/records?offset=0&header=kind%3Dtest")["records"]) == 4
    assert api.get(f"/api/v1/topics/{topic}/records?offset=0&header=kind%3Dno")["records"] == []
    at = page["records"][0]["timestamp_ms"]
    assert len(api.get(f"/api/v1/topics/{topic}/records?time={at}")["records"]) == 4
    assert api.get(f"/api/v1/topics/{topic}/records?time={at + 10**9}")["records"] == []
    assert api.ask("GET", f"/api/v1/topics/{topic}/records?partition=7").status == 404


def test_a_record_shows_what_each_protocol_calls_it(api: Api, managed: ServerProcess, unique: Unique) -> None:
    queue, topic = unique("q"), f"site/{unique('t')}"
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", managed.port_of("amqp")))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"task", pika.BasicProperties(content_type="text/plain", headers={"a": "b"}))
    connection.close()
    (record,) = api.get(f"/api/v1/topics/{queue}/records?offset=0")["records"]
    assert record["views"]["amqp"]["routing-key"] == queue
    assert record["views"]["amqp"]["content-type"] == "text/plain"
    assert record["headers"] == [["a", "b"]]
    paho.mqtt.publish.single(topic, b"21.5", qos=1, port=managed.port_of("mqtt"), hostname="127.0.0.1")
    found = api.get(f"/api/v1/topics/mqtt/records?key={part(topic)}&offset=0")["records"]
    assert [each["views"]["mqtt"]["topic"] for each in found] == [topic]


def test_a_record_that_is_appended_by_hand_is_consumed(api: Api, managed: ServerProcess, unique: Unique) -> None:
    topic = unique("t")
    api.ask("POST", "/api/v1/topics", {"name": topic})
    made = api.ask("POST", f"/api/v1/topics/{topic}/records", {"key": "k", "value": {"n": 1}, "headers": {"h": "v"}})
    assert (made.status, made.body["offset"]) == (201, 0)
    consumer = Consumer(
        {"bootstrap.servers": managed.bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    assert (message.key(), message.value(), message.headers()) == (b"k", b'{"n": 1}', [("h", b"v")])
    consumer.close()
    assert api.ask("POST", "/api/v1/topics/__consumer_offsets/records", {"value": "x"}).status == 400


def test_records_are_followed_as_they_come(api: Api, managed: ServerProcess, unique: Unique) -> None:
    topic = unique("t")
    api.ask("POST", "/api/v1/topics", {"name": topic})
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    connection.request("GET", f"/api/v1/topics/{topic}/follow")
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    produce(managed, topic, b"one", b"two")
    seen: list[str] = []
    while len(seen) < 2:
        line = response.readline()
        if line.startswith(b"data: "):
            seen += values_of(json.loads(line[6:]))
    assert seen == ["one", "two"]
    connection.close()


def test_a_range_is_replayed_into_a_queue(api: Api, managed: ServerProcess, unique: Unique) -> None:
    topic, queue = unique("t"), unique("q")
    produce(managed, topic, *(b"%d" % number for number in range(10)))
    api.ask("PUT", f"/api/queues/%2F/{queue}", {})
    answer = api.ask("POST", f"/api/v1/topics/{topic}/replay", {"first": 3, "last": 6, "target": queue})
    assert answer.body == {"replayed": 4}
    wait_until(lambda: api.get(f"/api/queues/%2F/{queue}")["messages_ready"] == 4, what="the replayed messages")
    peeked = api.get(f"/api/v1/queues/%2F/{queue}/messages")
    assert [each["offset"] for each in peeked] == [0, 1, 2, 3]
    assert api.ask("POST", f"/api/v1/topics/{topic}/replay", {"target": topic}).status == 400
    assert api.ask("POST", f"/api/v1/topics/{topic}/replay", {"target": "nowhere"}).status == 404


def test_a_groups_lag_is_shown_and_its_offsets_are_reset_after_a_preview(
    api: Api, managed: ServerProcess, unique: Unique
) -> None:
    topic, group = unique("t"), unique("g")
    produce(managed, topic, b"1", b"2", b"3")
    consumer = Consumer(
        {
            "bootstrap.servers": managed.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    found = api.get(f"/api/v1/groups/{group}")
    assert len(found["members"]) == 1
    (offset,) = found["offsets"]
    assert (offset["committed"], offset["end"], offset["lag"]) == (1, 3, 2)
    consumer.close()
    wait_until(lambda: not api.get(f"/api/v1/groups/{group}")["members"], what="an empty group")
    reset = f"/api/v1/groups/{group}/reset"
    preview = api.ask("POST", reset, {"topic": topic, "to": "latest", "preview": True})
    assert preview.body["changes"] == [{"topic": topic, "partition": 0, "before": 1, "after": 3}]
    assert api.get(f"/api/v1/groups/{group}")["offsets"][0]["committed"] == 1
    assert api.ask("POST", reset, {"topic": topic, "to": "latest"}).status == 200
    assert api.get(f"/api/v1/groups/{group}")["offsets"][0]["lag"] == 0
    assert api.ask("DELETE", f"/api/v1/groups/{group}").status == 204


def test_dead_letters_are_moved_back_and_delayed_messages_cancelled(
    api: Api, managed: ServerProcess, unique: Unique
) -> None:
    dead, work, delayed = unique("dead"), unique("work"), unique("delayed")
    for name in (dead, work):
        api.ask("PUT", f"/api/queues/%2F/{name}", {})
    for number in range(3):
        body = {"properties": {}, "routing_key": dead, "payload": str(number), "payload_encoding": "string"}
        api.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
    assert api.ask("POST", f"/api/v1/queues/%2F/{dead}/move", {"target": work}).body == {"moved": 3}
    assert api.get(f"/api/queues/%2F/{work}")["messages"] == 3
    api.ask(
        "PUT", f"/api/exchanges/%2F/{delayed}", {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    )
    api.ask("POST", f"/api/bindings/%2F/e/{delayed}/q/{work}", {"routing_key": "k"})
    late = {
        "properties": {"headers": {"x-delay": 3_600_000}},
        "routing_key": "k",
        "payload": "later",
        "payload_encoding": "string",
    }
    assert api.ask("POST", f"/api/exchanges/%2F/{delayed}/publish", late).body == {"routed": True}
    (entry,) = api.get(f"/api/v1/queues/%2F/{work}/delayed")
    assert api.ask("DELETE", f"/api/v1/queues/%2F/{work}/delayed/{entry['id']}").status == 204
    assert api.get(f"/api/v1/queues/%2F/{work}/delayed") == []


def test_the_overview_and_the_audit_trail(api: Api) -> None:
    overview = api.get("/api/v1/overview")
    assert overview["node"]["memory_bytes"] > 1_000_000
    assert {each["name"] for each in overview["listeners"]} >= {"kafka", "amqp", "mqtt", "http"}
    assert Api(api.port, "nobody", "x").ask("GET", "/api/v1/overview").status == 401
    wait_until(
        lambda: any(each["kind"] == "login refused" for each in api.get("/api/v1/audit?count=1000")["events"]),
        what="the refused login in the audit trail",
    )
    assert api.ask("PUT", "/api/users/audited", {"password": "x", "tags": ""}).status in (201, 204)
    wait_until(
        lambda: any(
            (each["kind"], each.get("target")) == ("change", "PUT /api/users/audited")
            for each in api.get("/api/v1/audit?count=1000")["events"]
        ),
        what="the new user in the audit trail",
    )
    api.ask("DELETE", "/api/users/audited")


def test_connections_of_every_protocol_are_listed_and_closed(api: Api, managed: ServerProcess, unique: Unique) -> None:
    name, client_id = unique("worker"), unique("device")
    parameters = pika.ConnectionParameters(
        "127.0.0.1", managed.port_of("amqp"), client_properties={"connection_name": name}
    )
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    queue = unique("q")
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="tag")
    device = paho.mqtt.client.Client(paho.mqtt.enums.CallbackAPIVersion.VERSION2, client_id)
    device.connect("127.0.0.1", managed.port_of("mqtt"))
    device.loop_start()
    device.subscribe(f"{client_id}/#", 1)

    def mine() -> list[Any]:
        listed = api.get("/api/v1/connections")
        return [each for each in listed if each["client_properties"].get("connection_name") == name]

    wait_until(lambda: len(mine()) == 1, what="the connection in the list")
    (found,) = mine()
    assert (found["user"], found["vhost"], found["channels"]) == ("guest", "/", 1)
    (listed,) = [each for each in api.get("/api/channels") if each["connection_details"]["name"] == found["name"]]
    assert (listed["consumer_count"], listed["prefetch_count"]) == (1, 7)
    (consumer,) = [each for each in api.get("/api/consumers/%2F") if each["queue"]["name"] == queue]
    assert (consumer["consumer_tag"], consumer["ack_required"], consumer["prefetch_count"]) == ("tag", True, 7)
    assert api.get(f"/api/queues/%2F/{queue}")["consumer_details"][0]["consumer_tag"] == "tag"
    path = f"/api/connections/{part(found['name'])}"
    assert api.get(path)["name"] == found["name"]
    sessions = f"/api/v1/mqtt/sessions?name={client_id}"
    wait_until(lambda: api.get(sessions)["sessions"][0]["subscription_count"] == 1, what="the subscription")
    (subscription,) = api.get(f"/api/v1/mqtt/sessions/{client_id}")["subscriptions"]
    assert subscription["filter"] == f"{client_id}/#"
    assert api.ask("DELETE", path).status == 204
    wait_until(lambda: mine() == [], what="the end of the connection")
    device.disconnect()
    device.loop_stop()
    assert api.ask("DELETE", "/api/v1/connections/999999999").status == 404


def test_retained_messages_are_shown_and_forgotten(api: Api, managed: ServerProcess, unique: Unique) -> None:
    topic = f"site/{unique('t')}"
    where = {"hostname": "127.0.0.1", "port": managed.port_of("mqtt")}
    paho.mqtt.publish.single(topic, b"21.5", qos=1, retain=True, **where)
    path = f"/api/v1/mqtt/retained?filter={part(topic)}"
    wait_until(lambda: api.get(path)["total"] == 1, what="the retained message")
    (message,) = api.get(path)["messages"]
    assert (message["topic"], message["payload"], message["qos"]) == (topic, "21.5", 1)
    assert api.ask("DELETE", path).body == {"cleared": 1}
    assert api.get(path)["total"] == 0
    assert api.ask("GET", "/api/v1/mqtt/retained?filter=a%23").status == 400
    assert api.ask("DELETE", "/api/v1/mqtt/retained").status == 400
