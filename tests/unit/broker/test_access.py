"""Who may do what: three views of one model, and what each says through every protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from trunkline.broker.access import AccessControl, AccessDenied, super_user_names
from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerSettings
from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.cursors.queue import QueueSettings
from trunkline.log.memory.store import MemoryStore
from trunkline.security.principal import Principal, anonymous
from trunkline.security.rules import CLUSTER_NAME, EVERYBODY, Effect, Kind, Operation, Pattern, Rule
from trunkline.security.topic_permissions import TopicPermission
from trunkline.security.users import Access, Permission, User

BOB, ALICE, ROOT = Principal("bob"), Principal("alice"), Principal("root", tags=("administrator",))
READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE
MQTT_TOPICS = {"readings": (("sensors/#",), ()), "mqtt": (("#",), ("sensors/#",))}


def topic_rule(who: str, operation: Operation, name: str, effect: Effect = Effect.ALLOW) -> Rule:
    return Rule(Kind.TOPIC, Pattern.LITERAL, name, f"User:{who}", "*", operation, effect)


def mqtt_rule(who: str, operation: Operation, name: str, effect: Effect = Effect.ALLOW) -> Rule:
    return Rule(Kind.MQTT_TOPIC, Pattern.FILTER, name, f"User:{who}", "*", operation, effect)


@asynccontextmanager
async def opened(store: MemoryStore | None = None, settings: BrokerSettings | None = None) -> AsyncIterator[BrokerCore]:
    core = BrokerCore(store or MemoryStore(), settings=settings or BrokerSettings(mqtt_topics=MQTT_TOPICS))
    await core.start()
    for name in ("bob", "alice"):
        core.accounts.put_user(User(name))
    try:
        yield core
    finally:
        await core.close()


def running(test: Callable[[BrokerCore], Awaitable[None]], settings: BrokerSettings | None = None) -> None:
    async def run() -> None:
        async with opened(settings=settings) as core:
            await test(core)

    asyncio.run(run())


def may(access: AccessControl, principal: Principal, operation: Operation, name: str, kind: Kind = Kind.TOPIC) -> bool:
    decision = access.decide(principal, operation, kind, name)
    assert decision.why
    assert access.allows(principal, operation, kind, name) is decision.allowed
    assert access.allows(principal, operation, kind, name) is decision.allowed  # as it is remembered
    return decision.allowed


def test_without_rules_everybody_may_do_everything_but_look_into_internal_topics() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        local = anonymous("127.0.0.1", administrator=True)
        assert access.open
        for who in (BOB, local, ROOT):
            assert may(access, who, READ, "orders")
            assert may(access, who, Operation.ALTER, CLUSTER_NAME, Kind.CLUSTER)
            assert may(access, who, READ, "__consumer_offsets")
            assert access.may_publish(who, "c", "a/b", "mqtt")
            assert access.may_subscribe(who, "c", "#")
        assert not may(access, BOB, READ, "__topology")
        assert not may(access, local, DESCRIBE, "__audit")
        assert may(access, ROOT, READ, "__audit")

    running(test)


def test_a_rule_about_a_topic_holds_for_the_queue_and_for_mqtt() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        for name in ("bob", "alice"):
            core.accounts.put_permission(name, "/", Permission())
        access.book.add([topic_rule("alice", READ, "readings"), topic_rule("alice", WRITE, "readings")])
        for who, allowed in ((ALICE, True), (BOB, False)):
            assert may(access, who, READ, "readings") is allowed
            assert access.allows_vhost(who, "/", Access.READ, "readings") is allowed
            assert access.may_publish(who, "c", "sensors/1", "readings") is allowed
            assert access.may_get(who, "c", "sensors/1", "readings") is allowed
            assert access.may_subscribe(who, "c", "sensors/+") is allowed
            assert access.may_subscribe(who, "c", "#")  # there is more that it can be given
            assert access.may_get(who, "c", "other", "mqtt")
        with pytest.raises(AccessDenied) as denied:
            access.check(BOB, READ, Kind.TOPIC, "readings")
        assert denied.value.name == "TOPIC_AUTHORIZATION_FAILED"
        with pytest.raises(AccessDenied, match="access to queue 'readings' in vhost '/' refused for user 'bob'"):
            access.check_vhost(BOB, "/", Access.READ, "readings")

    running(test)


def test_a_permission_holds_for_the_topic_of_the_queue() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        core.messaging.topology.add_vhost("prod")
        prod = core.messaging.topology.vhosts["prod"]
        assert may(access, BOB, READ, "prod.work")
        core.accounts.put_permission("bob", "prod", Permission("^$", "^$", "^work$"))
        assert not may(access, BOB, READ, "prod.work"), "it is no queue yet, and bob has nothing in /"
        await core.messaging.queues.declare(prod, QueueDeclaration("work", QueueSettings()))
        assert may(access, BOB, READ, "prod.work")
        assert may(access, BOB, DESCRIBE, "prod.work")
        assert not may(access, BOB, WRITE, "prod.work")
        assert not may(access, BOB, Operation.DELETE, "prod.work")
        core.accounts.put_permission("bob", "/", Permission("^$", "^out-", "^in-"))
        assert may(access, BOB, READ, "in-1")
        assert not may(access, BOB, READ, "out-1")
        assert may(access, BOB, WRITE, "out-1")
        assert access.may_publish(BOB, "c", "a", "out-1")
        assert not access.may_publish(BOB, "c", "b", "mqtt")
        assert may(access, anonymous("10.0.0.1"), READ, "out-1"), "who has no account is the rules' matter"

    running(test)


def test_once_permissions_restrict_who_has_none_may_only_what_rules_allow() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        assert may(access, ALICE, READ, "orders")
        core.accounts.put_permission("bob", "/", Permission(read="^bob"))
        assert not may(access, ALICE, READ, "orders")
        access.book.add([topic_rule("alice", READ, "orders")])
        assert may(access, ALICE, READ, "orders")
        core.accounts.put_permission("bob", "/", Permission())
        assert may(access, ALICE, READ, "else")

    running(test)


def test_rules_for_mqtt_topics_hold_for_the_log_topic_that_has_them() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        access.book.add([mqtt_rule("bob", READ, "sensors/1/#"), mqtt_rule("alice", READ, "sensors/#")])
        assert access.may_get(BOB, "c", "sensors/1/t", "readings")
        assert not access.may_get(BOB, "c", "sensors/2/t", "readings")
        assert access.may_subscribe(BOB, "c", "sensors/#")
        assert not access.may_publish(BOB, "c", "sensors/1/t", "readings")
        assert may(access, ALICE, READ, "readings"), "all of it is hers to read"
        assert not may(access, BOB, READ, "readings"), "some of it is not his"
        assert may(access, BOB, DESCRIBE, "readings")
        assert may(access, BOB, READ, "mqtt"), "the rules are about what is stored elsewhere"
        assert access.may_bind_mqtt(BOB, "sensors.1.*")
        assert not access.may_bind_mqtt(BOB, "sensors.*.t")
        assert not access.may_bind_mqtt(BOB, "#")
        access.book.add([mqtt_rule("alice", READ, "sensors/secret", Effect.DENY)])
        assert not may(access, ALICE, READ, "readings")

    running(test)


def test_denials_win_and_administrators_and_super_users_stand_above() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        everybody = EVERYBODY.removeprefix("User:")
        access.book.add([topic_rule(everybody, READ, "t"), topic_rule(everybody, Operation.ALL, "t", Effect.DENY)])
        assert not may(access, BOB, READ, "t")
        assert not may(access, BOB, WRITE, "t")
        assert may(access, ROOT, READ, "t")
        assert may(access, ALICE, READ, "t")
        assert may(access, ALICE, READ, "__topology")
        assert "DENY ALL on TOPIC t" in access.decide(BOB, READ, Kind.TOPIC, "t").why

    running(test, BrokerSettings(super_users=("alice",)))
    assert super_user_names(" User:alice; bob,User:c ") == ["alice", "bob", "c"]


def test_without_a_default_only_what_a_rule_or_a_permission_allows_is_allowed() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        assert not access.open
        assert not may(access, BOB, READ, "t")
        assert not access.may_publish(BOB, "c", "a", None)
        core.accounts.put_permission("bob", "/", Permission())
        assert may(access, BOB, READ, "t")
        assert access.may_publish(BOB, "c", "a", None)
        assert not may(access, BOB, READ, "g", Kind.GROUP)
        access.book.add([Rule(Kind.GROUP, Pattern.PREFIXED, "g", "User:bob", "*", READ, Effect.ALLOW)])
        assert may(access, BOB, READ, "g1", Kind.GROUP)
        assert not access.allows_anywhere(ALICE, WRITE, Kind.TOPIC)
        access.book.add([topic_rule("alice", WRITE, "x")])
        assert access.allows_anywhere(ALICE, WRITE, Kind.TOPIC)

    running(test, BrokerSettings(allow_everyone_if_no_acl=False))


def test_who_may_create_in_the_cluster_may_create_every_topic() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        access.book.add([topic_rule("alice", READ, "t")])
        assert not may(access, BOB, CREATE, "t")
        access.book.add([Rule(Kind.CLUSTER, Pattern.LITERAL, CLUSTER_NAME, "User:bob", "*", CREATE, Effect.ALLOW)])
        assert may(access, BOB, CREATE, "t")

    running(test)


def test_topic_permissions_hold_for_keys_and_for_mqtt() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        core.accounts.put_permission("bob", "/", Permission())
        permission = TopicPermission("^{client_id}\\.", "^free\\.")
        access.book.put_topic_permission("bob", "/", "amq.topic", permission)
        assert access.allows_key(BOB, "/", "amq.topic", Access.READ, "free.x")
        assert not access.allows_key(BOB, "/", "amq.topic", Access.READ, "x")
        assert access.allows_key(BOB, "/", "other", Access.READ, "x")
        assert access.may_publish(BOB, "c1", "c1/x", "mqtt")
        assert not access.may_publish(BOB, "c2", "c1/x", "mqtt")
        assert access.may_subscribe(BOB, "c1", "free/+")
        assert not access.may_subscribe(BOB, "c1", "#")
        assert access.may_publish(ALICE, "c2", "c1/x", "mqtt")
        access.book.remove_topic_permissions("bob")
        assert access.may_publish(BOB, "c2", "c1/x", "mqtt")

    running(test)


def test_tags_say_who_manages() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        core.accounts.put_permission("bob", "/", Permission())
        for tags, everywhere, in_own, changes in (
            (("administrator",), True, True, True),
            (("monitoring",), True, True, False),
            (("management",), False, True, False),
            (("policymaker",), False, True, False),
            ((), False, False, False),
        ):
            who = Principal("bob", tags=tags)
            assert access.may_manage(who, change=False, vhost="prod") is everywhere
            assert access.may_manage(who, change=False, vhost="/") is in_own
            assert access.may_manage(who, change=True) is changes

    running(test)


@pytest.mark.parametrize("with_messaging", [True, False])
def test_rules_are_there_after_a_restart_whatever_listeners_are_on(with_messaging: bool) -> None:
    rules = [topic_rule("bob", READ, "kept"), mqtt_rule("bob", WRITE, "a/%c")]

    async def test() -> None:
        store = MemoryStore()
        async with opened(store) as core:
            added = core.access.book.add([*rules, topic_rule("bob", READ, "gone")])
            assert added is not None
            await added
            await core.access.book.remove([topic_rule("bob", READ, "gone")])  # type: ignore[misc]
            assert core.access.book.add(rules) is None, "they are there"
            put = core.access.book.put_topic_permission("bob", "/", "x", TopicPermission("a", "b"))
            assert put is not None
            await put
        core = BrokerCore(store, with_messaging=with_messaging)
        await core.start()
        assert list(core.access.rules) == rules
        assert core.access.topic_permissions.by_place == {("bob", "/", "x"): TopicPermission("a", "b")}
        assert not core.access.open
        await core.close()

    asyncio.run(test())


def test_what_was_decided_is_forgotten_when_anything_changes() -> None:
    async def test(core: BrokerCore) -> None:
        access = core.access
        changes: list[Callable[[], object]] = [
            lambda: access.book.add([topic_rule("alice", READ, "t")]),
            lambda: access.book.remove([topic_rule("alice", READ, "t")]),
            lambda: core.accounts.put_permission("bob", "/", Permission(read="^$")),
            lambda: core.accounts.remove_permission("bob", "/"),
        ]
        expected = True
        assert access.allows(BOB, READ, Kind.TOPIC, "t")
        for change in changes:
            version = access.version
            change()
            expected = not expected
            assert access.version > version
            assert access.allows(BOB, READ, Kind.TOPIC, "t") is expected

    running(test)


def test_refusals_are_in_the_audit_trail() -> None:
    async def test(core: BrokerCore) -> None:
        core.access.book.add([topic_rule("alice", READ, "t")])
        with pytest.raises(AccessDenied):
            core.access.check(BOB, READ, Kind.TOPIC, "t", protocol="kafka")
        with pytest.raises(AccessDenied):
            core.access.check_vhost(BOB, "/", Access.READ, "q", protocol="amqp")
        await asyncio.sleep(0)
        while core.audit._writing is not None:
            await asyncio.sleep(0)
        events = (await core.audit.read(None, 10)).events
        assert [(event["kind"], event["user"], event["protocol"], event["target"]) for event in events] == [
            ("access refused", "bob", "kafka", "topic t"),
            ("access refused", "bob", "amqp", "queue q in vhost /"),
        ]

    running(test)
