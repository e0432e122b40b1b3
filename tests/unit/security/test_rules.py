"""Rules: what a set of them says, beside the plainest reading of Kafka's and MQTT's semantics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.security.principal import Principal
from trunkline.security.rules import (
    CLUSTER_NAME,
    EVERYBODY,
    Effect,
    InvalidRule,
    Kind,
    Operation,
    Pattern,
    Rule,
    RuleSet,
    Say,
)

BOB = Principal("bob", "10.0.0.1")
ALICE = Principal("alice", "10.0.0.2")
ALLOW, DENY = Effect.ALLOW, Effect.DENY


def topic(
    name: str,
    operation: Operation,
    effect: Effect = ALLOW,
    *,
    who: str = "User:bob",
    host: str = "*",
    pattern: Pattern = Pattern.LITERAL,
) -> Rule:
    return Rule(Kind.TOPIC, pattern, name, who, host, operation, effect)


def mqtt(name: str, operation: Operation, effect: Effect = ALLOW, who: str = "User:bob") -> Rule:
    return Rule(Kind.MQTT_TOPIC, Pattern.FILTER, name, who, "*", operation, effect)


def rules(*given_rules: Rule) -> RuleSet:
    found = RuleSet()
    for rule in given_rules:
        assert found.add(rule)
    return found


_OPERATIONS = [
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
]
some_rules = st.builds(
    topic,
    st.sampled_from(["t", "to", "topic", "other", "*"]),
    st.sampled_from(_OPERATIONS),
    st.sampled_from([ALLOW, DENY]),
    who=st.sampled_from(["User:bob", "User:alice", EVERYBODY]),
    host=st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    pattern=st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
)


def _plainly(given_rules: set[Rule], who: Principal, operation: Operation, name: str) -> Say:
    def speaks(rule: Rule) -> bool:
        if rule.pattern is Pattern.PREFIXED:
            return name.startswith(rule.name)
        return rule.name in (name, "*")

    about = [rule for rule in given_rules if speaks(rule)]
    if not about:
        return Say.SILENT
    own = [rule for rule in about if rule.principal in (f"User:{who.name}", "User:*") and rule.host in ("*", who.host)]
    if any(rule.effect is DENY and rule.operation in (operation, Operation.ALL) for rule in own):
        return Say.REFUSED
    wanted = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        wanted |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        wanted |= {Operation.ALTER_CONFIGS}
    return Say.ALLOWED if any(rule.effect is ALLOW and rule.operation in wanted for rule in own) else Say.REFUSED


@given(
    st.lists(some_rules, max_size=8),
    st.lists(some_rules, max_size=4),
    st.sampled_from([BOB, ALICE]),
    st.sampled_from(_OPERATIONS[1:]),
    st.sampled_from(["t", "to", "topic", "topics", "else"]),
)
def test_a_rule_set_says_what_its_rules_do(
    added: list[Rule], removed: list[Rule], who: Principal, operation: Operation, name: str
) -> None:
    found, plain = RuleSet(), set[Rule]()
    for rule in added:
        assert found.add(rule) is (rule not in plain)
        plain.add(rule)
    for rule in removed:
        assert found.remove(rule) is (rule in plain)
        plain.discard(rule)
    assert set(found) == plain
    verdict = found.verdict(who, operation, Kind.TOPIC, name)
    assert verdict.say is _plainly(plain, who, operation, name)
    if verdict.rule is not None:
        assert verdict.rule in plain


def test_a_change_is_another_version() -> None:
    found = RuleSet()
    rule = topic("t", Operation.READ)
    versions = [found.version]
    found.add(rule)
    versions.append(found.version)
    found.add(rule)
    assert found.version == versions[-1]
    found.remove(rule)
    versions.append(found.version)
    assert len(set(versions)) == 3


def test_somewhere_is_enough_for_an_idempotent_producer() -> None:
    def say(*given_rules: Rule) -> Say:
        return rules(*given_rules).anywhere(BOB, Operation.WRITE, Kind.TOPIC).say

    assert say() is Say.SILENT
    assert say(topic("t", Operation.WRITE)) is Say.ALLOWED
    assert say(topic("t", Operation.READ)) is Say.REFUSED
    assert say(topic("t", Operation.WRITE), topic("t", Operation.WRITE, DENY)) is Say.REFUSED
    assert say(topic("t", Operation.WRITE), topic("*", Operation.ALL, DENY)) is Say.REFUSED
    prefix = topic("te", Operation.WRITE, DENY, pattern=Pattern.PREFIXED)
    assert say(topic("test", Operation.WRITE), prefix) is Say.REFUSED
    assert say(topic("*", Operation.WRITE), prefix) is Say.ALLOWED


def test_mqtt_rules_are_by_filter_with_the_user_and_the_client() -> None:
    found = rules(
        mqtt("home/%u/#", Operation.ALL),
        mqtt("devices/%c/state", Operation.WRITE),
        mqtt("home/bob/secret", Operation.READ, DENY),
    )

    def say(who: Principal, client: str, operation: Operation, name: str) -> Say:
        return found.of_topic(who, client, operation, name).say

    assert say(BOB, "c", Operation.READ, "home/bob/lamp") is Say.ALLOWED
    assert say(BOB, "c", Operation.READ, "home/bob/secret") is Say.REFUSED
    assert say(BOB, "c", Operation.WRITE, "home/bob/secret") is Say.ALLOWED
    assert say(BOB, "c", Operation.WRITE, "devices/c/state") is Say.ALLOWED
    assert say(BOB, "c", Operation.READ, "devices/c/state") is Say.REFUSED
    assert say(BOB, "c", Operation.READ, "garden") is Say.SILENT
    assert say(ALICE, "c", Operation.READ, "home/bob/secret") is Say.REFUSED


@pytest.mark.parametrize("name", ["+", "#", "a/b", "x+"])
def test_a_name_that_is_a_filter_widens_no_rule(name: str) -> None:
    who = Principal(name)
    found = rules(mqtt("home/%u/x", Operation.ALL, who=EVERYBODY), mqtt("no/%u", Operation.ALL, DENY, EVERYBODY))
    assert found.of_topic(who, "c", Operation.READ, "home/bob/x").say is not Say.ALLOWED
    assert found.of_filter(who, "c", Operation.READ, "home/#").say is not Say.ALLOWED
    assert found.of_topic(who, "c", Operation.READ, "no/anything").say is Say.REFUSED


def test_a_subscription_is_refused_when_it_could_get_nothing() -> None:
    found = rules(
        mqtt("a/#", Operation.READ), mqtt("a/secret/#", Operation.READ, DENY), mqtt("b/#", Operation.ALL, who="User:al")
    )

    def say(topic_filter: str) -> Say:
        return found.of_filter(BOB, "c", Operation.READ, topic_filter).say

    assert say("a/x") is Say.ALLOWED
    assert say("#") is Say.ALLOWED
    assert say("a/secret/+") is Say.REFUSED
    assert say("b/x") is Say.REFUSED
    assert say("c/#") is Say.SILENT


def test_who_gets_all_of_a_filter_must_be_allowed_all_of_it() -> None:
    found = rules(mqtt("a/#", Operation.READ), mqtt("a/secret", Operation.READ, DENY), mqtt("b/x", Operation.READ))

    def say(topic_filter: str) -> Say:
        return found.of_whole_filter(BOB, Operation.READ, topic_filter).say

    assert say("a/b/#") is Say.ALLOWED
    assert say("a/#") is Say.REFUSED
    assert say("b/+") is Say.REFUSED
    assert say("c/#") is Say.SILENT


@pytest.mark.parametrize(
    "rule",
    [
        topic("", Operation.READ),
        topic("t", Operation.READ, who="bob"),
        topic("t", Operation.READ, who="User:"),
        topic("t", Operation.READ, host=""),
        topic("t", Operation.CLUSTER_ACTION),
        topic("t" * 1025, Operation.READ),
        topic("t", Operation.READ, pattern=Pattern.FILTER),
        mqtt("a/#/b", Operation.READ),
        mqtt("a", Operation.DESCRIBE),
        Rule(Kind.CLUSTER, Pattern.LITERAL, "mine", "User:bob", "*", Operation.CREATE, ALLOW),
    ],
)
def test_what_is_no_rule_is_refused(rule: Rule) -> None:
    with pytest.raises(InvalidRule):
        RuleSet().add(rule)


def test_the_cluster_has_one_name() -> None:
    assert RuleSet().add(Rule(Kind.CLUSTER, Pattern.LITERAL, CLUSTER_NAME, "User:b", "*", Operation.CREATE, ALLOW))


def test_a_rule_for_everybodys_own_topics_is_about_those_of_others() -> None:
    found = rules(mqtt("home/%u/#", Operation.READ, who=EVERYBODY), mqtt("dev/%c", Operation.WRITE, who=EVERYBODY))
    assert found.of_topic(BOB, "c", Operation.READ, "home/bob/door").say is Say.ALLOWED
    assert found.of_topic(BOB, "c", Operation.READ, "home/alice/door").say is Say.REFUSED
    assert found.of_filter(BOB, "c", Operation.READ, "home/alice/+").say is Say.REFUSED
    assert found.of_filter(BOB, "c", Operation.READ, "home/+/door").say is Say.ALLOWED
    assert found.of_whole_filter(BOB, Operation.READ, "home/alice/door").say is Say.REFUSED
    assert found.of_topic(BOB, "c", Operation.WRITE, "dev/d").say is Say.REFUSED
    assert found.of_topic(BOB, "c", Operation.READ, "elsewhere").say is Say.SILENT
