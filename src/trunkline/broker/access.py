"""Access: the one place where it is decided who may do what, whatever protocol they ask in.

There is one model with three views of it, and what one view says holds for the same data through all protocols:

| view                    | speaks of                                    | says                                                |
|-------------------------|----------------------------------------------|-----------------------------------------------------|
| rules (Kafka's ACLs)    | topics, groups, the cluster, transactions    | see `security/rules`                                |
| permissions (RabbitMQ's)| the queues and exchanges of a virtual host   | a user with a permission there: what it matches     |
| rules for MQTT topics   | MQTT topics by filter                        | see `security/rules`                                |

A log topic is a TOPIC to the rules, the queue that it is to the permissions (or a queue of its own name in "/", if it is none),
and the MQTT topics that are written to it, all of them, to the rules for those. The answer is put together so:

1. An administrator may, and whoever `super_users` names. Internal topics are theirs alone, but for those that Kafka has, too.
2. What one view refuses is refused. A rule set refuses what a rule denies, and what it has rules about of which none allows
   it; a permission what its expressions do not match.
3. What one view allows is allowed.
4. Where none says anything: yes, if `allow_everyone_if_no_acl` is on; but no for a user without a permission in the virtual
   host once there are permissions that do not allow everything.

A look-up costs one dictionary access: answers are kept until something changes (`version`), `_MAX_KNOWN` of them. While nothing
restricts anybody (`open`) it costs less. A refusal is noted in the audit trail by who refuses: `check`, `refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from trunkline.broker.audit import ACCESS_REFUSED, Audit
from trunkline.broker.state.rule_book import RuleBook
from trunkline.clock import Clock
from trunkline.log.errors import LogError
from trunkline.log.names import READABLE_TOPICS, RESERVED_TOPICS
from trunkline.log.store import LogStore
from trunkline.security.filters import covers, matches, overlap
from trunkline.security.principal import ANONYMOUS_NAME, Principal
from trunkline.security.rules import CLUSTER_NAME, USER_PREFIX, Kind, Operation, Say, Verdict
from trunkline.security.users import Access, Accounts

DEFAULT_VHOST: Final = "/"
MQTT_EXCHANGE: Final = "amq.topic"  # where MQTT topics are routing keys
MANAGEMENT, MONITORING, POLICYMAKER = "management", "monitoring", "policymaker"
_LOOKERS: Final = frozenset({MANAGEMENT, MONITORING, POLICYMAKER})
_PRIVATE: Final = RESERVED_TOPICS - READABLE_TOPICS
_SYS: Final = "$SYS"
_MAX_KNOWN: Final = 100_000

# What a permission has to match for an operation on a topic: one of these.
_ACCESSES: Final[Mapping[Operation, tuple[Access, ...]]] = {
    Operation.READ: (Access.READ,),
    Operation.WRITE: (Access.WRITE,),
    Operation.CREATE: (Access.CONFIGURE,),
    Operation.DELETE: (Access.CONFIGURE,),
    Operation.ALTER: (Access.CONFIGURE,),
    Operation.ALTER_CONFIGS: (Access.CONFIGURE,),
    Operation.DESCRIBE: (Access.READ, Access.WRITE, Access.CONFIGURE),
    Operation.DESCRIBE_CONFIGS: (Access.READ, Access.WRITE, Access.CONFIGURE),
}
_OPERATIONS: Final[Mapping[Access, Operation]] = {
    Access.READ: Operation.READ,
    Access.WRITE: Operation.WRITE,
    Access.CONFIGURE: Operation.DESCRIBE,  # who makes or deletes a queue says so: see `check_vhost`
}
_KAFKA_NAMES: Final[Mapping[Kind, str]] = {
    Kind.TOPIC: "TOPIC_AUTHORIZATION_FAILED",
    Kind.GROUP: "GROUP_AUTHORIZATION_FAILED",
    Kind.CLUSTER: "CLUSTER_AUTHORIZATION_FAILED",
    Kind.TRANSACTIONAL_ID: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    Kind.DELEGATION_TOKEN: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    Kind.USER: "CLUSTER_AUTHORIZATION_FAILED",
    Kind.MQTT_TOPIC: "TOPIC_AUTHORIZATION_FAILED",
}


class AccessDenied(LogError):
    """Somebody may not do something. `name` is Kafka's for it."""

    def __init__(self, text: str, kind: Kind = Kind.TOPIC) -> None:
        super().__init__(text)
        self.name = _KAFKA_NAMES[kind]


class Decision(NamedTuple):
    """Whether something is allowed, and by what: words for people."""

    allowed: bool
    why: str


class MqttTopics(NamedTuple):
    """What is written to a log topic: the MQTT topics that these filters match, and `but` do not."""

    filters: tuple[str, ...]
    but: tuple[str, ...] = ()


class QueueNames(Protocol):
    """Which queue a topic is, and the other way round."""

    watch: Callable[[], None]  # called when a topic has become a queue, or is none any more

    def named_by(self, topic: str) -> tuple[str, str] | None:
        """The virtual host and the name of the queue that a topic is."""

    def topic_of(self, vhost: str, name: str) -> str:
        """The topic of a queue, also of one that is not there yet."""


class AccessControl:
    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        audit: Audit,
        *,
        super_users: Iterable[str] = (),
        allow_everyone: bool = True,
        mqtt_topics: Mapping[str, MqttTopics] | None = None,
    ) -> None:
        """`super_users` are names; `mqtt_topics` says for each log topic that MQTT writes to which topics those are."""
        self.version = 0
        self.open = True
        self.book = RuleBook(store, clock, self.changed)
        self.rules = self.book.rules
        self.topic_permissions = self.book.topic_permissions
        self.accounts: Accounts | None = None
        self._queues: QueueNames | None = None
        self._audit = audit
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self._mqtt_topics = mqtt_topics or {}
        self._known: dict[tuple[object, ...], bool] = {}
        self._watchers: list[Callable[[], None]] = []
        self.changed()

    def subscribe(self, watcher: Callable[[], None]) -> None:
        """Call this after every change of what users may do."""
        self._watchers.append(watcher)

    def changed(self) -> None:
        """What users may do has changed: nothing that was decided holds any more."""
        self.version += 1
        self._known.clear()
        restricted = self.accounts is not None and self.accounts.restricted
        self.open = self._allow_everyone and not len(self.rules) and not restricted and not len(self.topic_permissions)
        for watcher in self._watchers:
            watcher()

    def queues_changed(self) -> None:
        """A topic is a queue from now on, or is none any more."""
        self._known.clear()

    def use_accounts(self, accounts: Accounts) -> None:
        self.accounts = accounts
        accounts.watch = self.changed
        self.changed()

    def use_queues(self, queues: QueueNames) -> None:
        self._queues = queues
        queues.watch = self.queues_changed

    def is_super(self, principal: Principal) -> bool:
        return principal.administrator or principal.name in self._super_users

    # -- topics, groups, the cluster --------------------------------------------------------------------------------

    def allows(self, principal: Principal, operation: Operation, kind: Kind, name: str) -> bool:
        if self.open and (kind is not Kind.TOPIC or name not in _PRIVATE):
            return True
        asked = (principal, operation, kind, name)
        found = self._known.get(asked)
        if found is None:
            found = self._keep(asked, self.decide(principal, operation, kind, name).allowed)
        return found

    def check(self, principal: Principal, operation: Operation, kind: Kind, name: str, *, protocol: str = "") -> None:
        """Raise AccessDenied unless the principal may do this."""
        if not self.allows(principal, operation, kind, name):
            raise self.refused(principal, operation, kind, name, protocol=protocol)

    def refused(
        self, principal: Principal, operation: Operation, kind: Kind, name: str, *, protocol: str = ""
    ) -> AccessDenied:
        """The error for something that is not allowed, which is noted."""
        what = f"{kind.name.lower()} {name}"
        self._audit.add(
            ACCESS_REFUSED, principal, protocol=protocol, target=what, text=f"may not {operation.name.lower()}"
        )
        return AccessDenied(f"{principal.name} may not {operation.name.lower()} {what}", kind)

    def allows_anywhere(self, principal: Principal, operation: Operation, kind: Kind) -> bool:
        """Whether there is some resource of the kind for which this is allowed."""
        if self.open or self.is_super(principal):
            return True
        say = self.rules.anywhere(principal, operation, kind).say
        if say is Say.SILENT:
            return self._default(principal, DEFAULT_VHOST).allowed
        return say is Say.ALLOWED

    def decide(self, principal: Principal, operation: Operation, kind: Kind, name: str) -> Decision:
        """The answer, and why; nothing is kept or noted."""
        if kind is Kind.TOPIC and name in _PRIVATE:
            # A broker that asks nobody makes whoever comes from the same machine an administrator. That is no login.
            if self.is_super(principal) and principal.name != ANONYMOUS_NAME:
                return Decision(True, f"{principal.name} is an administrator")
            return Decision(False, "internal topics are for administrators who have logged in")
        if self.is_super(principal):
            return Decision(True, f"{principal.name} is an administrator")
        if kind is not Kind.TOPIC:
            return self._decided(principal, DEFAULT_VHOST, (self.rules.verdict(principal, operation, kind, name),))
        vhost, queue = (self._queues and self._queues.named_by(name)) or (DEFAULT_VHOST, name)
        return self._decide_topic(principal, operation, name, vhost, queue)

    def _decide_topic(self, principal: Principal, operation: Operation, topic: str, vhost: str, queue: str) -> Decision:
        """`queue` is the one that the topic is, or will be once it is declared."""
        return self._decided(
            principal,
            vhost,
            (
                self._of_topic_rules(principal, operation, topic),
                self._of_permission(principal, operation, vhost, queue),
                self._of_mqtt_rules(principal, operation, topic),
            ),
        )

    def _of_topic_rules(self, principal: Principal, operation: Operation, topic: str) -> Verdict:
        if operation is Operation.CREATE:
            of_cluster = self.rules.verdict(principal, operation, Kind.CLUSTER, CLUSTER_NAME)
            if of_cluster.say is Say.ALLOWED:
                return of_cluster
        return self.rules.verdict(principal, operation, Kind.TOPIC, topic)

    def _of_permission(
        self, principal: Principal, operation: Operation, vhost: str, *names: str
    ) -> Verdict | Decision | None:
        """What the user's permission in a virtual host says; one of the names has to match."""
        if self.accounts is None:
            return None
        permission = self.accounts.permissions.get((principal.name, vhost))
        accesses = _ACCESSES.get(operation)
        if permission is None or accesses is None:
            return None
        shown = f"the permission of user '{principal.name}' in vhost '{vhost}'"
        if any(permission.allows(access, name) for access in accesses for name in names):
            return Decision(True, f"{shown} matches {names[0]}")
        return Decision(False, f"{shown} does not match {names[0]}")

    def _of_mqtt_rules(self, principal: Principal, operation: Operation, topic: str) -> Verdict | None:
        """What the rules for MQTT topics say of a log topic that has their messages."""
        held = self._mqtt_topics.get(topic)
        if held is None or not self.rules.of_mqtt or operation not in (Operation.READ, Operation.WRITE):
            return None
        allowing: Verdict | None = None
        silent = False
        for each in held.filters:
            verdict = self.rules.of_whole_filter(principal, operation, each, held.but)
            if verdict.say is Say.REFUSED:
                return verdict
            silent = silent or verdict.say is Say.SILENT
            allowing = verdict
        return None if silent else allowing

    def _decided(self, principal: Principal, vhost: str, views: Sequence[Verdict | Decision | None]) -> Decision:
        allowing: Decision | None = None
        for view in views:
            said = _of_verdict(view) if isinstance(view, Verdict) else view
            if said is not None:
                if not said.allowed:
                    return said
                allowing = allowing or said
        return allowing or self._default(principal, vhost)

    def _default(self, principal: Principal, vhost: str) -> Decision:
        if not self._allow_everyone:
            return Decision(False, "no rule allows it, and allow_everyone_if_no_acl is off")
        accounts = self.accounts
        restricts = accounts is not None and accounts.restricted and principal.name in accounts.users
        if restricts and not self.may_enter(principal, vhost):
            return Decision(False, f"user '{principal.name}' has no permission in vhost '{vhost}', and no rule")
        return Decision(True, "no rule is about it")

    def _keep(self, asked: tuple[object, ...], allowed: bool) -> bool:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[asked] = allowed
        return allowed

    # -- queues and exchanges ------------------------------------------------------------------------------------------

    def allows_vhost(
        self,
        principal: Principal,
        vhost: str,
        access: Access,
        name: str,
        kind: str = "queue",
        operation: Operation | None = None,
    ) -> bool:
        """Whether a user may do something to a queue or an exchange.

        `operation` says what, where that is not what the access says by itself: CREATE, DELETE or ALTER.
        """
        asked = (principal, vhost, access, name, kind, operation)
        found = self._known.get(asked)
        if found is None:
            found = self._keep(asked, self.decide_vhost(principal, vhost, access, name, kind, operation).allowed)
        return found

    def check_vhost(
        self,
        principal: Principal,
        vhost: str,
        access: Access,
        name: str,
        kind: str = "queue",
        operation: Operation | None = None,
        *,
        protocol: str = "",
    ) -> None:
        """Raise AccessDenied, in RabbitMQ's words, unless a user may do this; see `allows_vhost`."""
        if not self.allows_vhost(principal, vhost, access, name, kind, operation):
            raise self.refused_vhost(principal, vhost, access, name, kind, protocol=protocol)

    def refused_vhost(
        self, principal: Principal, vhost: str, access: Access, name: str, kind: str, *, protocol: str = ""
    ) -> AccessDenied:
        self._audit.add(
            ACCESS_REFUSED,
            principal,
            protocol=protocol,
            target=f"{kind} {name} in vhost {vhost}",
            text=f"no {access.value} access",
        )
        return AccessDenied(f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{principal.name}'")

    def decide_vhost(
        self,
        principal: Principal,
        vhost: str,
        access: Access,
        name: str,
        kind: str = "queue",
        operation: Operation | None = None,
    ) -> Decision:
        """As RabbitMQ decides by the user's permission; then, of a queue, as the rules about its topic do."""
        accounts = self.accounts
        permission = None if accounts is None else accounts.permissions.get((principal.name, vhost))
        if permission is None:
            return Decision(False, f"user '{principal.name}' has no permission in vhost '{vhost}'")
        if not permission.allows(access, name):
            return Decision(
                False, f"'{access.value}' of user '{principal.name}' in vhost '{vhost}' does not match {name}"
            )
        if kind != "queue":
            return Decision(True, f"the permission of user '{principal.name}' in vhost '{vhost}' matches {name}")
        topic = None if self._queues is None else self._queues.topic_of(vhost, name)
        if topic is None or self.open:
            return Decision(True, f"the permission of user '{principal.name}' in vhost '{vhost}' matches {name}")
        asked = operation or _OPERATIONS[access]
        if topic in _PRIVATE or self.is_super(principal):
            return self.decide(principal, asked, Kind.TOPIC, topic)
        return self._decide_topic(principal, asked, topic, vhost, name)

    def hides(self, principal: Principal, vhost: str, queue: str) -> bool:
        """Whether rules keep a user from knowing of a queue. By its permissions alone everybody may ask if it is there."""
        if self.open or self._queues is None or self.is_super(principal):
            return False
        topic = self._queues.topic_of(vhost, queue)
        return self.rules.verdict(principal, Operation.DESCRIBE, Kind.TOPIC, topic).say is Say.REFUSED

    def may_enter(self, principal: Principal, vhost: str) -> bool:
        return self.accounts is not None and self.accounts.may_enter(principal.name, vhost)

    def allows_key(
        self, principal: Principal, vhost: str, exchange: str, access: Access, key: str, client_id: str = ""
    ) -> bool:
        """Whether a user may publish with a key to a topic exchange, or bind by it."""
        if not len(self.topic_permissions):
            return True
        return self.topic_permissions.allows(principal.name, vhost, exchange, access, key, client_id) is not False

    def check_key(
        self, principal: Principal, vhost: str, exchange: str, access: Access, key: str, *, protocol: str = ""
    ) -> None:
        """Raise AccessDenied, in RabbitMQ's words, unless `allows_key`; what is bound must be the user's to read, too."""
        allowed = self.allows_key(principal, vhost, exchange, access, key)
        if allowed and access is Access.READ and (vhost, exchange) == (DEFAULT_VHOST, MQTT_EXCHANGE):
            allowed = self.may_bind_mqtt(principal, key)
        if not allowed:
            place = f"exchange '{exchange}' in vhost '{vhost}'"
            self._audit.add(
                ACCESS_REFUSED,
                principal,
                protocol=protocol,
                target=f"topic {key} in {place}",
                text=f"no {access.value} access",
            )
            raise AccessDenied(f"access to topic '{key}' in {place} refused for user '{principal.name}'")

    def may_manage(self, principal: Principal, *, change: bool, vhost: str | None = None) -> bool:
        """Whether somebody may look at everything (in a virtual host), or also change it. By tags, as in RabbitMQ.

        `administrator` may do both; `monitoring` may look everywhere, `management` and `policymaker` where they may enter.
        """
        if self.is_super(principal):
            return True
        tags = frozenset(principal.tags)
        if change or not tags & _LOOKERS:
            return False
        return MONITORING in tags or vhost is None or self.may_enter(principal, vhost)

    # -- MQTT topics -----------------------------------------------------------------------------------------------------

    def may_publish(self, principal: Principal, client_id: str, topic: str, log_topic: str | None) -> bool:
        """Whether a client may publish to an MQTT topic, which is written to `log_topic`, if to any."""
        if self.open:
            return True
        return self._of_name(principal, client_id, Operation.WRITE, topic, log_topic)

    def may_get(self, principal: Principal, client_id: str, topic: str, log_topic: str | None) -> bool:
        """Whether a client may be given a message of an MQTT topic."""
        if self.open:
            return True
        return self._of_name(principal, client_id, Operation.READ, topic, log_topic)

    def _of_name(
        self, principal: Principal, client_id: str, operation: Operation, topic: str, log_topic: str | None
    ) -> bool:
        asked = (principal, client_id, operation, topic)
        found = self._known.get(asked)
        if found is None:
            decision = self.decide_mqtt(principal, client_id, operation, topic, log_topic)
            found = self._keep(asked, decision.allowed)
        return found

    def decide_mqtt(
        self, principal: Principal, client_id: str, operation: Operation, topic: str, log_topic: str | None
    ) -> Decision:
        if self.is_super(principal):
            return Decision(True, f"{principal.name} is an administrator")
        if _is_sys(topic):
            return self._of_sys(self.rules.of_topic(principal, client_id, operation, topic))
        if operation is Operation.WRITE:
            key = topic.replace("/", ".")
            if not self.allows_key(principal, DEFAULT_VHOST, MQTT_EXCHANGE, Access.WRITE, key, client_id):
                return Decision(False, f"the topic permission for {MQTT_EXCHANGE} does not match {key}")
        names = (MQTT_EXCHANGE,) if log_topic is None else (MQTT_EXCHANGE, log_topic)
        return self._decided(
            principal,
            DEFAULT_VHOST,
            (
                self.rules.of_topic(principal, client_id, operation, topic) if self.rules.of_mqtt else None,
                None if log_topic is None else self.rules.verdict(principal, operation, Kind.TOPIC, log_topic),
                self._of_permission(principal, operation, DEFAULT_VHOST, *names),
            ),
        )

    def may_subscribe(self, principal: Principal, client_id: str, topic_filter: str) -> bool:
        """Whether a client may subscribe to a filter: not if there is nothing that it could be given."""
        return self.open or self.decide_filter(principal, client_id, topic_filter).allowed

    def decide_filter(self, principal: Principal, client_id: str, topic_filter: str) -> Decision:
        if self.is_super(principal):
            return Decision(True, f"{principal.name} is an administrator")
        if _is_sys(topic_filter):
            return self._of_sys(self.rules.of_filter(principal, client_id, Operation.READ, topic_filter))
        key = topic_filter.replace("/", ".").replace("+", "*")
        if not self.allows_key(principal, DEFAULT_VHOST, MQTT_EXCHANGE, Access.READ, key, client_id):
            return Decision(False, f"the topic permission for {MQTT_EXCHANGE} does not match {key}")
        log_topics = self._log_topics(topic_filter.split("/"))
        refusal: Verdict | None = None
        for topic in log_topics:
            verdict = self.rules.verdict(principal, Operation.READ, Kind.TOPIC, topic)
            if verdict.say is not Say.REFUSED:
                refusal = None
                break
            refusal = verdict
        of_filter = (
            self.rules.of_filter(principal, client_id, Operation.READ, topic_filter) if self.rules.of_mqtt else None
        )
        of_permission = self._of_permission(principal, Operation.READ, DEFAULT_VHOST, MQTT_EXCHANGE, *log_topics)
        return self._decided(principal, DEFAULT_VHOST, (of_filter, refusal, of_permission))

    @staticmethod
    def _of_sys(verdict: Verdict) -> Decision:
        """What the broker tells of itself is for administrators, once anything is restricted, and for who is allowed it."""
        return _of_verdict(verdict) or Decision(False, f"{_SYS} is for administrators")

    def refused_mqtt(self, principal: Principal, operation: Operation, topic: str) -> None:
        """Note that a client was refused."""
        text = f"may not {operation.name.lower()}"
        self._audit.add(ACCESS_REFUSED, principal, protocol="mqtt", target=f"MQTT topic {topic}", text=text)

    def _log_topics(self, levels: Sequence[str]) -> list[str]:
        """Those that have messages of what a filter matches."""
        return [
            topic
            for topic, held in self._mqtt_topics.items()
            if any(overlap(each.split("/"), levels) for each in held.filters)
            and not any(covers(each.split("/"), levels) for each in held.but)
        ]

    def log_topic_of(self, topic: str) -> str | None:
        """Where publications of an MQTT topic are stored; None if they are not."""
        levels = topic.split("/")
        for name, held in self._mqtt_topics.items():
            stored = any(matches(each.split("/"), levels) for each in held.filters)
            if stored and not any(matches(each.split("/"), levels) for each in held.but):
                return name
        return None

    def may_bind_mqtt(self, principal: Principal, key: str) -> bool:
        """Whether a queue of this user may be bound by this key to the exchange where MQTT topics are routing keys."""
        if not self.rules.of_mqtt or self.is_super(principal):
            return True
        topic_filter = _filter_of_key(key)
        return self.rules.of_whole_filter(principal, Operation.READ, topic_filter).say is not Say.REFUSED


def _is_sys(topic: str) -> bool:
    return topic == _SYS or topic.startswith(_SYS + "/")


def _of_verdict(verdict: Verdict) -> Decision | None:
    if verdict.say is Say.SILENT:
        return None
    if verdict.rule is not None:
        return Decision(verdict.say is Say.ALLOWED, f"the rule {verdict.rule}")
    return Decision(False, "there are rules about it, and none allows this")


def _filter_of_key(key: str) -> str:
    """The MQTT topics that a binding key of a topic exchange matches, or a filter that covers them.

    `#` stands for any number of words anywhere, in a filter at the end only.
    """
    words = key.split(".")
    if "#" in words:
        words = words[: words.index("#") + 1]
    return "/".join("+" if word == "*" else word for word in words)


def super_user_names(text: str) -> list[str]:
    """As Kafka's `super.users`: `User:alice;User:bob`; commas and bare names are taken, too."""
    words = (word.strip() for word in text.replace(",", ";").split(";"))
    return [word.removeprefix(USER_PREFIX) for word in words if word]
