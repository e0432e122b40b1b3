"""The rule book: rules, topic permissions, quotas and limits, as records of `__topology`, folded at start whatever listeners are on.

    rule:["TOPIC","LITERAL","orders","User:bob","*","READ","ALLOW"]    {}
    topic-permission:["user","vhost","exchange"]                       {"write", "read"}
    quota:[["client-id",null],["user","bob"]]                          {"producer_byte_rate": 1000.0}
    limits:["vhost","/"]                                               {"max-queues": 10}

A tombstone removes. As with the rest of the topology, a change is made in memory first and recorded in the same step; what
it returns is done when the record is on disk. A record that cannot be read is passed over and told of. That leaves the
resource with fewer rules, so its text is an error in the log, not a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from trunkline.clock import Clock
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Ticket
from trunkline.security.limits import Limits
from trunkline.security.quotas import Entity, Quotas, entity_of
from trunkline.security.rules import Effect, InvalidRule, Kind, Operation, Pattern, Rule, RuleSet
from trunkline.security.topic_permissions import MAX_TOPIC_PERMISSIONS, TopicPermission, TopicPermissions
from trunkline.security.users import InvalidAccount

logger = logging.getLogger(__name__)

_RULE: Final = "rule:"
_TOPIC_PERMISSION: Final = "topic-permission:"
_QUOTA: Final = "quota:"
_LIMITS: Final = "limits:"


class RuleBook:
    def __init__(self, store: LogStore, clock: Clock, watch: Callable[[], None]) -> None:
        """`watch` is called after every change."""
        self.rules = RuleSet()
        self.topic_permissions = TopicPermissions()
        self.quotas = Quotas()
        self.limits = Limits()
        self._topic = StateTopic(store, clock, TOPOLOGY_TOPIC)
        self._watch = watch

    def fold(self, latest: Mapping[bytes, bytes]) -> None:
        """Take over the newest records of `__topology`, by key."""
        for key, value in latest.items():
            text = key.decode("utf-8", "replace")
            try:
                if text.startswith(_RULE):
                    self.rules.add(_rule(text.removeprefix(_RULE)))
                elif text.startswith(_TOPIC_PERMISSION):
                    user, vhost, exchange = json.loads(text.removeprefix(_TOPIC_PERMISSION))
                    document = json.loads(value)
                    found = TopicPermission(str(document["write"]), str(document["read"]))
                    found.check()
                    self.topic_permissions.by_place[user, vhost, exchange] = found
                elif text.startswith(_LIMITS):
                    kind, name = json.loads(text.removeprefix(_LIMITS))
                    self.limits.put(kind, name, json.loads(value))
                elif text.startswith(_QUOTA):
                    parts = {str(kind): name for kind, name in json.loads(text.removeprefix(_QUOTA))}
                    self.quotas.put(entity_of(parts), {str(k): float(v) for k, v in json.loads(value).items()})
            except (ValueError, KeyError, TypeError) as error:
                logger.error("the record %s is passed over, and holds for nobody: %s", text[:300], error)
        self._watch()

    # -- rules -----------------------------------------------------------------------------------------------------

    def add(self, rules: Iterable[Rule]) -> Ticket | None:
        """Add rules; None if they are all there. InvalidRule if one cannot be: then none is added."""
        fresh = list(dict.fromkeys(rule for rule in rules if rule not in self.rules))
        for rule in fresh:
            rule.check()
        added: list[Rule] = []
        try:
            for rule in fresh:
                self.rules.add(rule)
                added.append(rule)
        except InvalidRule:
            for rule in added:
                self.rules.remove(rule)
            raise
        return self._record([(_rule_key(rule), {}) for rule in added])

    def remove(self, rules: Iterable[Rule]) -> Ticket | None:
        """Remove rules; None if there is none of them."""
        return self._record([(_rule_key(rule), None) for rule in list(rules) if self.rules.remove(rule)])

    # -- topic permissions -------------------------------------------------------------------------------------------

    def put_topic_permission(self, user: str, vhost: str, exchange: str, permission: TopicPermission) -> Ticket | None:
        """InvalidAccount if it cannot be stored."""
        permission.check()
        known = self.topic_permissions.by_place
        if (user, vhost, exchange) not in known and len(known) >= MAX_TOPIC_PERMISSIONS:
            raise InvalidAccount(f"there are {MAX_TOPIC_PERMISSIONS} topic permissions already")
        known[user, vhost, exchange] = permission
        return self._record([(_place_key(user, vhost, exchange), permission._asdict())])

    def remove_topic_permissions(
        self, user: str, vhost: str | None = None, exchange: str | None = None
    ) -> Ticket | None:
        """All of a user's, or those in one virtual host, or for one exchange of it."""
        known = self.topic_permissions.by_place
        gone = [
            place for place in known if place[0] == user and vhost in (None, place[1]) and exchange in (None, place[2])
        ]
        for place in gone:
            del known[place]
        return self._record([(_place_key(*place), None) for place in gone])

    # -- quotas --------------------------------------------------------------------------------------------------------

    def put_quotas(self, entity: Entity, values: Mapping[str, float]) -> Ticket | None:
        """All quotas of an entity; none removes them. InvalidQuota if they cannot be stored."""
        if not values and entity not in self.quotas.by_entity:
            return None
        self.quotas.put(entity, values)
        key = _QUOTA + json.dumps(entity, separators=(",", ":"))
        return self._record([(key, dict(values) if values else None)])

    # -- limits of users and virtual hosts -------------------------------------------------------------------------------

    def put_limits(self, kind: str, name: str, values: Mapping[str, object]) -> Ticket | None:
        """All limits of a `user` or a `vhost`; none removes them. InvalidLimit if they cannot be stored."""
        if not values and (kind, name) not in self.limits.by_place:
            return None
        kept = self.limits.put(kind, name, values)
        return self._record([(_LIMITS + json.dumps([kind, name], separators=(",", ":")), kept or None)])

    # -- records -------------------------------------------------------------------------------------------------------

    def _record(self, changes: list[tuple[str, Mapping[str, object] | None]]) -> Ticket | None:
        if not changes:
            return None
        self._watch()
        records = [
            state_record(
                key.encode(), None if document is None else json.dumps(document, separators=(",", ":")).encode()
            )
            for key, document in changes
        ]
        return self._topic.put(records, Durability.DISK)


def _rule_key(rule: Rule) -> str:
    words = [rule.kind.name, rule.pattern.name, rule.name, rule.principal, rule.host, rule.operation.name]
    return _RULE + json.dumps([*words, rule.effect.name], separators=(",", ":"))


def _rule(text: str) -> Rule:
    kind, pattern, name, principal, host, operation, effect = json.loads(text)
    return Rule(Kind[kind], Pattern[pattern], name, principal, host, Operation[operation], Effect[effect])


def _place_key(user: str, vhost: str, exchange: str) -> str:
    return _TOPIC_PERMISSION + json.dumps([user, vhost, exchange], separators=(",", ":"))
