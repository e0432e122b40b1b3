"""Rules and topic permissions by hand, and questions about them: what `trunkline acl` and managements ask for.

A resource is written as people do: `topic:orders`, `topic:orders-*` (every one whose name begins so), `topic:*` (all), `group:g`,
`transactional-id:x`, `cluster`, and `mqtt:sensors/#` for MQTT topics. In questions also `queue:work` and `exchange:x`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.broker.access import AccessControl, Decision
from trunkline.broker.audit import CHANGE, Audit, AuditedPage
from trunkline.security.principal import Principal
from trunkline.security.rules import (
    CLUSTER_NAME,
    USER_PREFIX,
    WILDCARD,
    Effect,
    InvalidRule,
    Kind,
    Operation,
    Pattern,
    Rule,
)
from trunkline.security.topic_permissions import TopicPermission
from trunkline.security.users import Access

Json = dict[str, object]
PROTOCOLS: Final = ("kafka", "amqp", "mqtt")
_KINDS: Final = {
    "topic": Kind.TOPIC,
    "group": Kind.GROUP,
    "cluster": Kind.CLUSTER,
    "transactional-id": Kind.TRANSACTIONAL_ID,
    "mqtt": Kind.MQTT_TOPIC,
}
_WORDS: Final = {kind: word for word, kind in _KINDS.items()} | {
    Kind.DELEGATION_TOKEN: "delegation-token",
    Kind.USER: "user",
}
_ACCESSES: Final = {Operation.READ: Access.READ, Operation.WRITE: Access.WRITE}


class RuleAdministration:
    def __init__(self, access: AccessControl, audit: Audit) -> None:
        self._access = access
        self._audit = audit

    # -- rules -----------------------------------------------------------------------------------------------------

    def listed(self, user: str | None = None) -> list[Json]:
        return [
            _document(rule)
            for rule in self._access.rules
            if user is None or rule.principal in (USER_PREFIX + user, USER_PREFIX + WILDCARD)
        ]

    async def add(self, asker: Principal, rules: Sequence[Rule], protocol: str) -> int:
        """InvalidRule if one cannot be: then none is added. Returns how many are new."""
        fresh = [rule for rule in dict.fromkeys(rules) if rule not in self._access.rules]
        recorded = self._access.book.add(fresh)
        if recorded is not None:
            await recorded
        for rule in fresh:
            self._audit.add(CHANGE, asker, protocol=protocol, target="rules", text=f"added {rule}")
        return len(fresh)

    async def remove(self, asker: Principal, rules: Sequence[Rule], protocol: str) -> int:
        """Returns how many there were."""
        gone = [rule for rule in dict.fromkeys(rules) if rule in self._access.rules]
        recorded = self._access.book.remove(gone)
        if recorded is not None:
            await recorded
        for rule in gone:
            self._audit.add(CHANGE, asker, protocol=protocol, target="rules", text=f"removed {rule}")
        return len(gone)

    # -- topic permissions -------------------------------------------------------------------------------------------

    def topic_permissions(self) -> list[Json]:
        return [
            {"user": user, "vhost": vhost, "exchange": exchange, "write": found.write, "read": found.read}
            for (user, vhost, exchange), found in self._access.topic_permissions.by_place.items()
        ]

    async def put_topic_permission(
        self, asker: Principal, place: tuple[str, str, str], permission: TopicPermission, protocol: str
    ) -> None:
        """InvalidAccount if it cannot be stored. `place` is a user, a virtual host and an exchange."""
        recorded = self._access.book.put_topic_permission(*place, permission)
        if recorded is not None:
            await recorded
        user, vhost, exchange = place
        text = f"for exchange {exchange} in vhost {vhost}: write {permission.write}, read {permission.read}"
        self._audit.add(CHANGE, asker, protocol=protocol, target=f"topic permission of {user}", text=text)

    async def remove_topic_permissions(
        self, asker: Principal, user: str, vhost: str, exchange: str | None, protocol: str
    ) -> None:
        recorded = self._access.book.remove_topic_permissions(user, vhost, exchange)
        if recorded is not None:
            await recorded
            self._audit.add(
                CHANGE, asker, protocol=protocol, target=f"topic permission of {user}", text=f"removed in vhost {vhost}"
            )

    # -- limits of users and virtual hosts -----------------------------------------------------------------------------

    def limits(self) -> list[Json]:
        return [
            {"kind": kind, "name": name, "limits": dict(values)}
            for (kind, name), values in self._access.book.limits.by_place.items()
        ]

    async def put_limits(
        self, asker: Principal, kind: str, name: str, values: Mapping[str, object], protocol: str
    ) -> None:
        """All limits of a `user` or a `vhost`; InvalidLimit if they cannot be stored."""
        recorded = self._access.book.put_limits(kind, name, values)
        if recorded is not None:
            await recorded
        shown = ", ".join(f"{limit}={value}" for limit, value in values.items()) or "removed"
        self._audit.add(CHANGE, asker, protocol=protocol, target=f"limits of {kind} {name}", text=shown)

    # -- questions -----------------------------------------------------------------------------------------------------

    def decide(
        self,
        user: str,
        operation: str,
        resource: str,
        protocol: str,
        *,
        vhost: str = "/",
        host: str = "",
        client_id: str = "",
    ) -> Decision:
        """Whether a user could do something by a protocol, and why. InvalidRule if that is no question."""
        if protocol not in PROTOCOLS:
            raise InvalidRule(f"{protocol!r} is none of {', '.join(PROTOCOLS)}")
        principal = self._principal(user, host)
        word, _, name = resource.partition(":")
        if protocol == "amqp":
            return self._by_amqp(principal, operation, word, name, vhost)
        asked = parse_operation(operation)
        if word == "mqtt":
            if protocol != "mqtt" or asked not in (Operation.READ, Operation.WRITE):
                raise InvalidRule("MQTT topics are read and written, by mqtt")
            return self._by_mqtt(principal, asked, name, client_id)
        kind = _KINDS.get(word)
        if kind is None or (protocol == "mqtt" and kind is not Kind.TOPIC):
            raise InvalidRule(f"{resource!r} is no resource of {protocol}")
        return self._access.decide(principal, asked, kind, CLUSTER_NAME if kind is Kind.CLUSTER else name)

    def _principal(self, user: str, host: str) -> Principal:
        accounts = self._access.accounts
        account = None if accounts is None else accounts.users.get(user)
        return Principal(user, host, () if account is None else account.tags)

    def _by_amqp(self, principal: Principal, operation: str, word: str, name: str, vhost: str) -> Decision:
        kind = "queue" if word == "topic" else word
        if kind not in ("queue", "exchange"):
            raise InvalidRule("by amqp one asks for queue:NAME, exchange:NAME or topic:NAME")
        if operation.lower() in ("configure", "create", "delete"):
            asked = None if operation.lower() == "configure" else parse_operation(operation)
            return self._access.decide_vhost(principal, vhost, Access.CONFIGURE, name, kind, asked)
        access = _ACCESSES.get(parse_operation(operation))
        if access is None:
            raise InvalidRule("by amqp one may configure, write or read")
        return self._access.decide_vhost(principal, vhost, access, name, kind)

    def _by_mqtt(self, principal: Principal, operation: Operation, name: str, client_id: str) -> Decision:
        if operation is Operation.READ and ("+" in name or "#" in name):
            return self._access.decide_filter(principal, client_id, name)
        return self._access.decide_mqtt(principal, client_id, operation, name, self._access.log_topic_of(name))

    # -- what happened -----------------------------------------------------------------------------------------------

    async def audited(self, offset: int | None, count: int) -> AuditedPage:
        return await self._audit.read(offset, count)

    def note(self, asker: Principal, target: str, text: str, protocol: str) -> None:
        """Note an administrative change."""
        self._audit.add(CHANGE, asker, protocol=protocol, target=target, text=text)


def parse_operation(text: str) -> Operation:
    try:
        return Operation[text.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(each.name.lower().replace("_", "-") for each in Operation)
        raise InvalidRule(f"{text!r} is none of {known}") from None


def parse_rule(user: str, operation: str, resource: str, *, deny: bool = False, host: str = WILDCARD) -> Rule:
    """A rule as people write it: see above. InvalidRule if it cannot be one."""
    word, separator, name = resource.partition(":")
    kind = _KINDS.get(word)
    if kind is None or (not separator and kind is not Kind.CLUSTER):
        raise InvalidRule(f"{resource!r} is not one of {', '.join(f'{each}:NAME' for each in _KINDS)}")
    pattern = Pattern.LITERAL
    if kind is Kind.CLUSTER:
        name = CLUSTER_NAME
    elif kind is Kind.MQTT_TOPIC:
        pattern = Pattern.FILTER
    elif name.endswith(WILDCARD) and name != WILDCARD:
        pattern, name = Pattern.PREFIXED, name.removesuffix(WILDCARD)
    principal = user if ":" in user else USER_PREFIX + user
    effect = Effect.DENY if deny else Effect.ALLOW
    rule = Rule(kind, pattern, name, principal, host, parse_operation(operation), effect)
    rule.check()
    return rule


def _document(rule: Rule) -> Json:
    name = "" if rule.kind is Kind.CLUSTER else f":{rule.name}"
    if rule.pattern is Pattern.PREFIXED:
        name += WILDCARD
    return {
        "user": rule.principal.removeprefix(USER_PREFIX),
        "host": rule.host,
        "operation": rule.operation.name.lower().replace("_", "-"),
        "effect": rule.effect.name.lower(),
        "resource": _WORDS[rule.kind] + name,
    }
