"""Rules: who may do what to which resource, whatever protocol they ask in.

A rule is about a principal (`User:bob`, or `User:*` for everybody) from a host (`*`: any), a resource, one operation, and
allows or denies it. Its vocabulary is Kafka's, numbers included, since Kafka's tools write most rules; MQTT's rules have the
same shape and a resource kind of their own, whose names are MQTT topics:

| kind                      | pattern  | speaks of                                                        |
|---------------------------|----------|------------------------------------------------------------------|
| TOPIC, GROUP, CLUSTER, …  | LITERAL  | the resource of that name; `*` is every resource of the kind     |
|                           | PREFIXED | every resource whose name begins so                              |
| MQTT_TOPIC                | FILTER   | the MQTT topics that the filter matches; `%u` is the user's name |
|                           |          | and `%c` the client id                                           |

A rule with `%u` or `%c` is about the topics of every user or client: `home/%u/#` says of `home/alice/door` that bob may not.

What a rule set says of an operation on a resource (`verdict`):

    REFUSED   a rule denies it: a denial wins over everything; or there are rules about the resource, and none allows it
    ALLOWED   a rule allows it, or allows what implies it (`IMPLIED_BY`)
    SILENT    no rule, of anybody, is about the resource

A denial is of the operation that it names (or of ALL), as in Kafka: who may not read may still describe.

Nothing here does I/O: the broker folds records into a `RuleSet`. `version` grows with every change, so that decisions can be
kept. Bounded by `MAX_RULES`. A look-up costs O(length of the name) for literal and prefixed rules, O(rules) for filters;
who asks often keeps the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from trunkline.security.filters import check_filter, covers, matches, overlap
from trunkline.security.principal import Principal

MAX_RULES: Final = 50_000
MAX_NAME_CHARS: Final = 1_024
WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
USER_PREFIX: Final = "User:"
EVERYBODY: Final = USER_PREFIX + WILDCARD


class InvalidRule(ValueError):
    """A rule that cannot be stored; the text says why."""


class Kind(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7
    MQTT_TOPIC = 100  # ours: Kafka's tools do not see these


class Pattern(IntEnum):
    LITERAL = 3
    PREFIXED = 4
    FILTER = 100  # ours


class Operation(IntEnum):
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Effect(IntEnum):
    DENY = 2
    ALLOW = 3


# What is allowed to who may do one of these.
IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}

# The operations that a resource knows, as Kafka's tools check before they ask.
OPERATIONS_OF: Final[Mapping[Kind, frozenset[Operation]]] = {
    Kind.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    Kind.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    Kind.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        }
    ),
    Kind.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT}),
    Kind.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    Kind.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
    Kind.MQTT_TOPIC: frozenset({Operation.READ, Operation.WRITE}),
}


class Rule(NamedTuple):
    kind: Kind
    pattern: Pattern
    name: str
    principal: str  # "User:bob"
    host: str
    operation: Operation
    effect: Effect

    def check(self) -> None:
        """Raise InvalidRule unless the rule can be stored."""
        kind, _, who = self.principal.partition(":")
        if not kind or not who:
            raise InvalidRule(f"Could not parse {self.principal!r}: a principal is written User:<name>")
        if not self.host or not self.name:
            raise InvalidRule("a rule has a host and a resource name, if need be '*'")
        if max(map(len, (self.name, self.principal, self.host))) > MAX_NAME_CHARS:
            raise InvalidRule(f"a name in a rule has at most {MAX_NAME_CHARS} characters")
        if self.operation is not Operation.ALL and self.operation not in OPERATIONS_OF[self.kind]:
            raise InvalidRule(f"{self.operation.name} is no operation of {self.kind.name}")
        if (self.kind is Kind.MQTT_TOPIC) is not (self.pattern is Pattern.FILTER):
            raise InvalidRule("a filter is what a rule about MQTT topics has, and no other")
        if self.kind is Kind.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidRule(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        if self.pattern is Pattern.FILTER:
            try:
                check_filter(self.name)
            except ValueError as error:
                raise InvalidRule(str(error)) from None

    def about(self, principal: Principal) -> bool:
        return self.principal in (USER_PREFIX + principal.name, EVERYBODY) and self.host in (WILDCARD, principal.host)

    def denies(self, operation: Operation) -> bool:
        return self.effect is Effect.DENY and self.operation in (operation, Operation.ALL)

    def allows(self, operation: Operation) -> bool:
        return self.effect is Effect.ALLOW and (
            self.operation in (operation, Operation.ALL) or self.operation in IMPLIED_BY.get(operation, ())
        )

    def __str__(self) -> str:
        where = "" if self.host == WILDCARD else f" from {self.host}"
        kind = {Pattern.LITERAL: "", Pattern.PREFIXED: "prefix ", Pattern.FILTER: "filter "}[self.pattern]
        what = f"{self.operation.name} on {self.kind.name} {kind}{self.name}"
        return f"{self.principal}{where}: {self.effect.name} {what}"


class Say(Enum):
    ALLOWED = "allowed"
    REFUSED = "refused"
    SILENT = "silent"


class Verdict(NamedTuple):
    """What rules say, and the rule that decided; None: it was refused for want of one that allows it."""

    say: Say
    rule: Rule | None = None


SILENT: Final = Verdict(Say.SILENT)
_WANTING: Final = Verdict(Say.REFUSED)


class RuleSet:
    def __init__(self) -> None:
        self.version = 0
        self._rules: dict[Rule, None] = {}
        self._literal: dict[tuple[Kind, str], list[Rule]] = {}
        self._prefixed: dict[Kind, dict[str, list[Rule]]] = {}
        self._filters: list[Rule] = []

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __contains__(self, rule: object) -> bool:
        return rule in self._rules

    @property
    def of_mqtt(self) -> bool:
        """Whether there are rules about MQTT topics."""
        return bool(self._filters)

    # -- changes -------------------------------------------------------------------------------------------------

    def add(self, rule: Rule) -> bool:
        """False if it is there already. InvalidRule if it cannot be."""
        if rule in self._rules:
            return False
        rule.check()
        if len(self._rules) >= MAX_RULES:
            raise InvalidRule(f"there are {MAX_RULES} rules already")
        self._rules[rule] = None
        self._place(rule).append(rule)
        self.version += 1
        return True

    def remove(self, rule: Rule) -> bool:
        """False if there is none such."""
        if rule not in self._rules:
            return False
        del self._rules[rule]
        place = self._place(rule)
        place.remove(rule)
        if not place and rule.pattern is Pattern.LITERAL:
            del self._literal[rule.kind, rule.name]
        elif not place and rule.pattern is Pattern.PREFIXED:
            del self._prefixed[rule.kind][rule.name]
        self.version += 1
        return True

    def _place(self, rule: Rule) -> list[Rule]:
        if rule.pattern is Pattern.FILTER:
            return self._filters
        if rule.pattern is Pattern.LITERAL:
            return self._literal.setdefault((rule.kind, rule.name), [])
        return self._prefixed.setdefault(rule.kind, {}).setdefault(rule.name, [])

    # -- resources with names --------------------------------------------------------------------------------------

    def about(self, kind: Kind, name: str) -> list[Rule]:
        """Every rule, of anybody, about the resource."""
        found = [*self._literal.get((kind, name), ()), *self._literal.get((kind, WILDCARD), ())]
        prefixed = self._prefixed.get(kind)
        if prefixed:
            for length in range(1, len(name) + 1):
                found += prefixed.get(name[:length], ())
        return found

    def verdict(self, principal: Principal, operation: Operation, kind: Kind, name: str) -> Verdict:
        about = self.about(kind, name)
        return _decided([rule for rule in about if rule.about(principal)], operation) if about else SILENT

    def anywhere(self, principal: Principal, operation: Operation, kind: Kind) -> Verdict:
        """Whether there is some resource of the kind for which this is allowed: Kafka asks that of idempotent producers."""
        own = [rule for rule in self._rules if rule.kind is kind and rule.about(principal)]
        denials = [rule for rule in own if rule.denies(operation)]
        for rule in denials:
            if rule.pattern is Pattern.LITERAL and rule.name == WILDCARD:
                return Verdict(Say.REFUSED, rule)
        for rule in own:
            if rule.allows(operation) and not any(_swallows(denial, rule) for denial in denials):
                return Verdict(Say.ALLOWED, rule)
        return _WANTING if any(rule.kind is kind for rule in self._rules) else SILENT

    # -- MQTT topics -----------------------------------------------------------------------------------------------

    def of_topic(self, principal: Principal, client_id: str, operation: Operation, topic: str) -> Verdict:
        """Whether this client may publish to, or get, messages of an MQTT topic."""
        levels = topic.split("/")
        found, own = False, []
        for rule, speaks_of, filters in self._expanded(principal, client_id):
            found = found or matches(speaks_of, levels)
            if filters and matches(filters, levels) and rule.about(principal):
                own.append(rule)
        return _decided(own, operation) if found else SILENT

    def of_filter(self, principal: Principal, client_id: str, operation: Operation, topic_filter: str) -> Verdict:
        """Whether this client may get something of what the filter matches: what it gets is decided by name."""
        levels = topic_filter.split("/")
        allowing, settled = None, False
        for rule, speaks_of, filters in self._expanded(principal, client_id):
            settled = settled or covers(speaks_of, levels)
            if filters and rule.about(principal):
                if covers(filters, levels) and rule.denies(operation):
                    return Verdict(Say.REFUSED, rule)
                if allowing is None and rule.allows(operation) and overlap(filters, levels):
                    allowing = rule
        if allowing is not None:
            return Verdict(Say.ALLOWED, allowing)
        return _WANTING if settled else SILENT

    def of_whole_filter(
        self, principal: Principal, operation: Operation, topic_filter: str, but: Sequence[str] = ()
    ) -> Verdict:
        """Whether this user may do this to everything that the filter matches: who reads a log topic gets all of it.

        What the filters in `but` match is somewhere else: rules that speak of nothing more are left out.
        """
        levels = topic_filter.split("/")
        elsewhere = [each.split("/") for each in but]
        allowing, found = None, False
        for rule, speaks_of, filters in self._expanded(principal, None):
            if not overlap(speaks_of, levels) or any(covers(other, speaks_of) for other in elsewhere):
                continue
            found = True
            if filters and rule.about(principal):
                if rule.denies(operation) and overlap(filters, levels):
                    return Verdict(Say.REFUSED, rule)
                if rule.allows(operation) and covers(filters, levels):
                    allowing = rule
        if allowing is not None:
            return Verdict(Say.ALLOWED, allowing)
        return _WANTING if found else SILENT

    def _expanded(self, principal: Principal, client_id: str | None) -> Iterator[tuple[Rule, list[str], list[str]]]:
        """Rules about MQTT topics: the filter of what each speaks of, whoever asks, and what it is for this client.

        A name that would itself be a filter, or more than a level, must not widen a rule: an allowing one is not for it (an
        empty list), and a denying one is for all such names. The same for a client id that is not known.
        """
        for rule in self._filters:
            text = rule.name
            if "%u" not in text and "%c" not in text:
                levels = text.split("/")
                yield rule, levels, levels
                continue
            speaks_of = ["+" if "%u" in level or "%c" in level else level for level in text.split("/")]
            text = _filled(text, "%u", principal.name, rule.effect)
            text = _filled(text, "%c", client_id, rule.effect)
            yield rule, speaks_of, text.split("/") if text else []


def _filled(text: str, field: str, value: str | None, effect: Effect) -> str:
    """The filter with the field's value; "" if it is not for this client."""
    if field not in text:
        return text
    if value and not any(character in value for character in "+#/"):
        return text.replace(field, value)
    if effect is Effect.ALLOW:
        return ""
    return "/".join("+" if field in level else level for level in text.split("/"))


def _decided(own: Iterable[Rule], operation: Operation) -> Verdict:
    allowing = None
    for rule in own:
        if rule.denies(operation):
            return Verdict(Say.REFUSED, rule)
        if allowing is None and rule.allows(operation):
            allowing = rule
    return Verdict(Say.ALLOWED, allowing) if allowing is not None else _WANTING


def _swallows(denial: Rule, rule: Rule) -> bool:
    """Whether everything that the rule is about is denied."""
    if denial.pattern is Pattern.PREFIXED:
        return rule.name.startswith(denial.name) and rule.name != WILDCARD
    return rule.pattern is Pattern.LITERAL and rule.name == denial.name
