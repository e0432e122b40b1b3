"""A rule that one protocol's tools make holds for the same data through every other: real clients of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
import pika.exceptions
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ResourceType as PythonResourceType

from tests.integration.access.clients import DEADLINE_S, HOST, Broker
from tests.integration.waiting import wait_until
from trunkline.protocols.mqtt.packets import V5, V311, PubAck, Publish

Unique = Callable[[str], str]
NOT_AUTHORIZED = 0x87


def binding(topic: str, user: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
    return AclBinding(kind, topic, pattern, f"User:{user}", "*", operation, permission)


def create(broker: Broker, *bindings: AclBinding) -> None:
    for future in broker.admin().create_acls(list(bindings)).values():
        future.result(DEADLINE_S)


def make_topic(broker: Broker, name: str) -> None:
    broker.admin().create_topics([NewTopic(name, 1)])[name].result(DEADLINE_S)


def produced(broker: Broker, user: str, topic: str) -> KafkaError | None:
    """What became of a record."""
    told: list[KafkaError | None] = []
    producer = Producer(broker.kafka(user))
    producer.produce(topic, b"value", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return told[0]


def fetched(broker: Broker, user: str, topic: str) -> KafkaError | None:
    """The error of a fetch from the beginning; None: a record came."""
    consumer = Consumer(broker.kafka(user, **{"group.id": "readers", "enable.auto.commit": False}))
    try:
        described = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        if described.error is not None:
            return described.error
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(int(DEADLINE_S)):
            record = consumer.poll(1.0)
            if record is not None:
                return record.error()
        raise AssertionError("neither a record nor an error")
    finally:
        consumer.close()


def refused_by_amqp(broker: Broker, user: str, work: Callable[[Any], object]) -> str:
    """The text with which a channel was closed; empty if it was not."""
    with broker.channel(user) as channel:
        try:
            work(channel)
        except pika.exceptions.ChannelClosedByBroker as closed:
            return f"{closed.reply_code} {closed.reply_text}"
    return ""


def test_an_acl_of_kafka_holds_for_kafka_amqp_and_mqtt(guarded: Broker, unique: Unique) -> None:
    topic = unique("orders")
    make_topic(guarded, topic)
    assert produced(guarded, "bob", topic) is None
    create(guarded, binding(topic, "alice", AclOperation.ALL, AclPermissionType.ALLOW))
    refusal = produced(guarded, "bob", topic)
    assert refusal is not None
    assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    refusal = fetched(guarded, "bob", topic)
    assert refusal is not None
    assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert topic not in guarded.admin("bob").list_topics(timeout=DEADLINE_S).topics
    for work in (
        lambda channel: channel.basic_get(topic),
        lambda channel: channel.basic_consume(topic, lambda *_: None),
        lambda channel: channel.queue_purge(topic),
        lambda channel: channel.queue_declare(topic, passive=True),
    ):
        assert f"access to queue '{topic}' in vhost '/' refused for user 'bob'" in refused_by_amqp(guarded, "bob", work)
    assert produced(guarded, "alice", topic) is None
    assert fetched(guarded, "alice", topic) is None
    with guarded.channel("alice") as channel:
        assert channel.basic_get(topic, auto_ack=True)[2] == b"value"

    def publish(channel: Any) -> None:
        channel.confirm_delivery()
        channel.basic_publish("", topic, b"by amqp", mandatory=True)

    assert f"may not write topic {topic}" in refused_by_amqp(guarded, "bob", publish)
    assert refused_by_amqp(guarded, "alice", publish) == ""


def test_an_acl_for_the_log_topic_of_mqtt_holds_for_its_publications(guarded: Broker, unique: Unique) -> None:
    name = unique("sensors")
    create(guarded, binding("mqtt", "alice", AclOperation.ALL, AclPermissionType.ALLOW))
    for version, told in ((V311, 0), (V5, NOT_AUTHORIZED)):
        with guarded.mqtt("bob", unique("c"), version) as wire:
            wire.send(Publish(name, b"x", 1, False, False, 1))
            assert wire.receive(PubAck).reason_code == told
            assert wire.subscribe(name) == (0x80 if version == V311 else NOT_AUTHORIZED)
    with guarded.mqtt("alice", unique("c")) as wire:
        assert wire.subscribe(name, qos=1) == 1
        wire.send(Publish(name, b"x", 1, False, False, 1))
        _, before = wire.receive_after(PubAck)
        got = [each for each in before if isinstance(each, Publish)] or [wire.receive(Publish)]
        assert got[0].payload == b"x"


def test_a_permission_of_rabbitmq_holds_for_kafka(guarded: Broker, unique: Unique) -> None:
    mine, other = unique("bob-own"), unique("other")
    for topic in (mine, other):
        make_topic(guarded, topic)
        assert produced(guarded, "alice", topic) is None
    guarded.permit("bob", configure="^$", write="^$", read=f"^{mine}$")
    assert fetched(guarded, "bob", mine) is None
    for refusal in (fetched(guarded, "bob", other), produced(guarded, "bob", mine)):
        assert refusal is not None
        assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        guarded.admin("bob").create_topics([NewTopic("new", 1)])["new"].result(DEADLINE_S)


def test_a_rule_for_mqtt_topics_holds_for_the_log_and_for_bindings(guarded: Broker, unique: Unique) -> None:
    plant = unique("plant")
    guarded.shell("acl", "add", "*", "all", f"mqtt:{plant}/%u/#")
    with guarded.mqtt("bob", unique("c")) as wire:
        assert wire.subscribe(f"{plant}/alice/#") == NOT_AUTHORIZED
        assert wire.subscribe(f"{plant}/#", qos=1) == 1
        for owner, told in (("alice", NOT_AUTHORIZED), ("bob", 0)):
            wire.send(Publish(f"{plant}/{owner}/t", b"x", 1, False, False, 1))
            ack, _ = wire.receive_after(PubAck)
            assert ack.reason_code == told
    refusal = fetched(guarded, "bob", "mqtt")
    assert refusal is not None, "the log topic has alice's messages, too"
    assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    queue = unique("q")

    def bind(channel: Any, key: str) -> None:
        channel.queue_declare(queue, auto_delete=True)
        channel.queue_bind(queue, "amq.topic", key)

    assert refused_by_amqp(guarded, "bob", lambda channel: bind(channel, f"{plant}.bob.*")) == ""
    assert "refused for user 'bob'" in refused_by_amqp(guarded, "bob", lambda channel: bind(channel, f"{plant}.#"))


def test_paho_is_told_what_it_may_not(guarded: Broker, unique: Unique) -> None:
    name = unique("t")
    guarded.shell("acl", "add", "alice", "all", f"mqtt:{name}")
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, unique("c"), protocol=paho.MQTTv5)
    client.username_pw_set("bob", "bob")
    published: list[Any] = []
    subscribed: list[Any] = []
    client.on_publish = lambda *told: published.append(told[3])
    client.on_subscribe = lambda *told: subscribed.extend(told[3])
    client.connect(HOST, guarded.server.port_of("mqtt"))
    client.loop_start()
    try:
        wait_until(client.is_connected, DEADLINE_S, "the connection")
        client.publish(name, b"x", qos=1)
        client.subscribe(name, qos=1)
        wait_until(lambda: bool(published and subscribed), DEADLINE_S, "both answers")
        assert (published[0].value, subscribed[0].value) == (NOT_AUTHORIZED, NOT_AUTHORIZED)
    finally:
        client.loop_stop()
        client.disconnect()


def test_confluent_creates_describes_and_deletes_acls(guarded: Broker, unique: Unique) -> None:
    topic = unique("t")
    admin = guarded.admin()
    literal = binding(topic, "bob", AclOperation.READ, AclPermissionType.ALLOW)
    prefixed = AclBinding(
        ResourceType.TOPIC, topic[:4], ResourcePatternType.PREFIXED, "User:alice", "127.0.0.1", AclOperation.WRITE, AclPermissionType.DENY
    )  # fmt: skip
    create(guarded, literal, prefixed)
    about = AclBindingFilter(
        ResourceType.TOPIC, topic, ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(about).result(DEADLINE_S)) == {literal, prefixed}
    exact = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:bob", None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.delete_acls([exact])[exact].result(DEADLINE_S) == [literal]
    assert admin.describe_acls(about).result(DEADLINE_S) == [prefixed]
    guarded.shell("acl", "add", "bob", "describe,alter", "cluster")
    with pytest.raises(KafkaException) as refused:
        guarded.admin("alice").create_acls([literal])[literal].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_kafka_python_creates_describes_and_deletes_acls(guarded: Broker, unique: Unique) -> None:
    topic = unique("t")
    admin = KafkaAdminClient(bootstrap_servers=guarded.server.bootstrap)
    try:
        rule = ACL(
            "User:bob",
            "*",
            ACLOperation.WRITE,
            ACLPermissionType.ALLOW,
            ResourcePattern(PythonResourceType.TOPIC, topic),
        )
        made = admin.create_acls([rule])
        assert [len(made["succeeded"]), len(made["failed"])] == [1, 0]
        every = ACLFilter(
            None, None, ACLOperation.ANY, ACLPermissionType.ANY, ResourcePattern(PythonResourceType.TOPIC, topic)
        )
        found, _ = admin.describe_acls(every)
        assert [(each.principal, each.operation) for each in found] == [("User:bob", ACLOperation.WRITE)]
        gone = admin.delete_acls([every])
        assert [len(matching) for _, matching, _ in gone] == [1]
        assert admin.describe_acls(every)[0] == []
    finally:
        admin.close()


def test_rules_survive_kill_9(own: Broker, unique: Unique) -> None:
    topic = unique("t")
    make_topic(own, topic)
    create(own, binding(topic, "alice", AclOperation.READ, AclPermissionType.ALLOW))
    own.shell("acl", "add", "alice", "read", "mqtt:a/#")
    own.server.kill()
    own.server.start()
    assert {rule["resource"] for rule in own.json("acl", "list")} == {f"topic:{topic}", "mqtt:a/#"}
    assert "refused" in refused_by_amqp(own, "bob", lambda channel: channel.basic_get(topic))


def test_the_command_line_adds_tries_out_and_removes_rules(guarded: Broker, unique: Unique) -> None:
    topic = unique("orders")
    assert "added 2 rules" not in guarded.shell("acl", "list")
    guarded.shell("acl", "add", "alice", "read,write", f"topic:{topic}*")
    guarded.shell("acl", "add", "bob", "all", f"topic:{topic}", "--deny", "--host", "10.0.0.1")
    listed = guarded.json("acl", "list")
    assert {(each["user"], each["operation"], each["effect"], each["resource"]) for each in listed} == {
        ("alice", "read", "allow", f"topic:{topic}*"),
        ("alice", "write", "allow", f"topic:{topic}*"),
        ("bob", "all", "deny", f"topic:{topic}"),
    }
    assert len(guarded.json("acl", "list", "--of", "bob")) == 1
    yes = guarded.shell("acl", "test", "alice", "read", f"topic:{topic}-1")
    assert yes == f"yes: the rule User:alice: ALLOW READ on TOPIC prefix {topic}\n"
    for protocol in ("kafka", "amqp"):
        answer = guarded.json("acl", "test", "bob", "read", f"topic:{topic}", "--protocol", protocol, code=1)
        assert answer == {"allowed": False, "why": "there are rules about it, and none allows this"}
    denied = guarded.shell("acl", "test", "bob", "write", f"topic:{topic}", "--host", "10.0.0.1", code=1)
    assert denied.startswith("no: the rule User:bob from 10.0.0.1: DENY ALL")
    assert guarded.shell("acl", "test", "bob", "write", "mqtt:a/b", "--protocol", "mqtt").startswith("yes: ")
    assert guarded.shell("acl", "test", "guest", "read", "topic:__topology").startswith("yes: ")
    guarded.shell("acl", "remove", "alice", "write", f"topic:{topic}*")
    guarded.shell("acl", "remove", "alice", "write", f"topic:{topic}*", code=1)
    guarded.shell("acl", "add", "alice", "fly", f"topic:{topic}", code=1)
    guarded.shell("acl", "add", "alice", "read", "moon:1", code=1)


def test_the_audit_trail_tells_who_logged_in_who_was_refused_and_what_was_changed(
    guarded: Broker, unique: Unique
) -> None:
    topic = unique("t")
    guarded.shell("acl", "add", "alice", "read", f"topic:{topic}")
    make_topic(guarded, topic)
    refused_by_amqp(guarded, "bob", lambda channel: channel.basic_get(topic))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(
            pika.ConnectionParameters(
                HOST, guarded.server.port_of("amqp"), "/", pika.PlainCredentials("bob", "wrong"), connection_attempts=1
            )
        )

    def events(*kinds: str) -> list[dict[str, Any]]:
        chosen = [word for kind in kinds for word in ("--kind", kind)]
        return [json.loads(line) for line in guarded.shell("audit", "-n", "1000", *chosen, "--json").splitlines()]

    def told() -> bool:
        found = events()
        return {
            ("change", "rules"), ("change", f"topic {topic}"), ("access refused", f"queue {topic} in vhost /"),
        } <= {(each["kind"], each.get("target", "")) for each in found} and any(
            each["kind"] == "login refused" and each["user"] == "bob" for each in found
        )  # fmt: skip

    wait_until(told, DEADLINE_S, "the events")
    assert {each["kind"] for each in events("access-refused")} == {"access refused"}
    assert f"queue {topic} in vhost /" in guarded.shell("audit", "-n", "1000")
