"""Definitions: everything declared, as one JSON document in the form that RabbitMQ exports and imports.

Exported are users, virtual hosts, permissions, topic permissions, durable exchanges, durable queues and the bindings between them. What is kept
of a password is exported, too: RabbitMQ's hash if it came from there and its user has not logged in since, else SCRAM keys
in a field that RabbitMQ passes over; there, such a user has no password until it is given one. Imported is the same, also from RabbitMQ; what exists already must agree, and stays. What the
document has beside that (policies, parameters) is counted and left out: the answer names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from trunkline.broker.messaging.messaging import Messaging
from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.broker.messaging.queue_arguments import read_settings
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.accounts import AccountRecords
from trunkline.broker.state.arguments import from_json, to_json
from trunkline.broker.state.rule_book import RuleBook
from trunkline.broker.state.topology import settled
from trunkline.broker.state.virtual_host import PREDECLARED, ExchangeInfo, VirtualHost
from trunkline.security.limits import USER, VHOST, InvalidLimit
from trunkline.security.scram import InvalidKeys, ScramKeys, from_document
from trunkline.security.topic_permissions import TopicPermission
from trunkline.security.users import SHA256, Accounts, InvalidAccount, Permission, User
from trunkline.version import BEHAVES_LIKE, VERSION

Json = dict[str, object]
_LEFT_OUT = ("policies", "operator_policies", "global_parameters")
_VHOST_LIMITS = "vhost-limits"  # a component of parameters


def export_definitions(messaging: Messaging, accounts: Accounts, book: RuleBook) -> Json:
    topology = messaging.topology
    exchanges: list[Json] = []
    queues: list[Json] = []
    bindings: list[Json] = []
    for vhost in topology.vhosts.values():
        kept = {name for name, info in vhost.exchanges.items() if name and info.durable}
        exchanges += [
            {"vhost": vhost.name, **exchange_document(vhost.exchanges[name])} for name in kept - PREDECLARED.keys()
        ]
        queues += [
            {
                "name": queue.name,
                "vhost": vhost.name,
                "durable": True,
                "auto_delete": queue.auto_delete,
                "arguments": to_json(queue.arguments),
            }
            for queue in vhost.queues.values()
            if queue.durable
        ]
        bindings += [
            binding
            for binding in binding_documents(vhost)
            if binding["source"] in kept
            and (
                binding["destination"] in kept
                if binding["destination_type"] == "exchange"
                else vhost.queues[str(binding["destination"])].durable
            )
        ]
    return {
        "rabbit_version": BEHAVES_LIKE,
        "rabbitmq_version": BEHAVES_LIKE,
        "product_name": "Trunkline",
        "product_version": VERSION,
        "users": [
            {
                "name": user.name,
                "password_hash": user.password_hash,
                "hashing_algorithm": user.hashing_algorithm,
                "scram": [keys.document() for keys in user.scram],
                "tags": list(user.tags),
                "limits": dict(book.limits.by_place.get((USER, user.name), {})),
            }
            for user in accounts.users.values()
        ],
        "vhosts": [{"name": name} for name in topology.vhosts],
        "permissions": [
            {"user": user, "vhost": vhost, "configure": p.configure, "write": p.write, "read": p.read}
            for (user, vhost), p in accounts.permissions.items()
        ],
        "topic_permissions": [
            {"user": user, "vhost": vhost, "exchange": exchange, "write": found.write, "read": found.read}
            for (user, vhost, exchange), found in book.topic_permissions.by_place.items()
        ],
        "parameters": [
            {"component": _VHOST_LIMITS, "vhost": name, "name": "limits", "value": dict(values)}
            for (kind, name), values in book.limits.by_place.items()
            if kind == VHOST
        ],
        "global_parameters": [],
        "policies": [],
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
    }


def exchange_document(info: ExchangeInfo) -> Json:
    return {
        "name": info.name,
        "type": info.kind,
        "durable": info.durable,
        "auto_delete": info.auto_delete,
        "internal": info.internal,
        "arguments": to_json(info.arguments),
    }


def binding_documents(vhost: VirtualHost) -> list[Json]:
    return [
        {
            "source": route.source,
            "vhost": vhost.name,
            "destination": route.destination,
            "destination_type": "exchange" if route.to_exchange else "queue",
            "routing_key": route.routing_key,
            "arguments": to_json(route.arguments),
        }
        for exchange in vhost.exchanges
        for route in (vhost.router.bindings(exchange) if exchange else ())
    ]


async def import_definitions(messaging: Messaging, users: AccountRecords, book: RuleBook, document: Json) -> Json:
    """Refused at the first part that cannot be had; what came before it stays. Returns how many of what were read."""
    topology = messaging.topology
    try:
        for entry in _entries(document, "vhosts"):
            await settled(topology.add_vhost(_text(entry, "name")))
        for entry in _entries(document, "users"):
            await settled(users.put_user(_user(entry)))
            if isinstance(entry.get("limits"), dict):
                await settled(book.put_limits(USER, _text(entry, "name"), cast(Json, entry["limits"])))
        for entry in _entries(document, "permissions"):
            permission = Permission(_text(entry, "configure"), _text(entry, "write"), _text(entry, "read"))
            _vhost(messaging, entry)
            await settled(users.put_permission(_text(entry, "user"), _text(entry, "vhost"), permission))
        for entry in _entries(document, "topic_permissions"):
            place = (_text(entry, "user"), _vhost(messaging, entry).name, _text(entry, "exchange"))
            found = TopicPermission(_text(entry, "write"), _text(entry, "read"))
            await settled(book.put_topic_permission(*place, found))
        for entry in _entries(document, "parameters"):
            if entry.get("component") == _VHOST_LIMITS and isinstance(entry.get("value"), dict):
                values = cast(Json, entry["value"])
                await settled(book.put_limits(VHOST, _vhost(messaging, entry).name, values))
    except (InvalidAccount, InvalidLimit) as error:
        raise Refused(Reason.PRECONDITION_FAILED, str(error)) from None
    for entry in _entries(document, "exchanges"):
        await settled(topology.declare_exchange(_vhost(messaging, entry), _exchange(entry)))
    for entry in _entries(document, "queues"):
        vhost = _vhost(messaging, entry)
        name, arguments = _text(entry, "name"), _table(entry)
        wish = QueueDeclaration(
            name,
            read_settings(name, vhost.name, arguments),
            durable=entry.get("durable", True) is True,
            auto_delete=entry.get("auto_delete") is True,
            arguments=arguments,
        )
        await messaging.queues.declare(vhost, wish)
    for entry in _entries(document, "bindings"):
        await settled(
            topology.bind(
                _vhost(messaging, entry),
                _text(entry, "source"),
                _text(entry, "destination"),
                _text(entry, "routing_key"),
                _table(entry),
                to_exchange=entry.get("destination_type") == "exchange",
            )
        )
    parts = ("users", "vhosts", "permissions", "topic_permissions", "exchanges", "queues", "bindings")
    imported = {part: len(_entries(document, part)) for part in parts}
    left_out = {part: len(_entries(document, part)) for part in _LEFT_OUT if document.get(part)}
    others = sum(entry.get("component") != _VHOST_LIMITS for entry in _entries(document, "parameters"))
    if others:
        left_out["parameters"] = others
    return {"imported": imported, "left_out": left_out}


def _entries(document: Json, part: str) -> list[Json]:
    entries = document.get(part, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Refused(Reason.PRECONDITION_FAILED, f"definitions: {part} must be a list of objects")
    return cast("list[Json]", entries)


def _text(entry: Json, name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise Refused(Reason.PRECONDITION_FAILED, f"definitions: {name} must be a string in {entry}")
    return value


def _table(entry: Json) -> dict[str, object]:
    value = entry.get("arguments", {})
    if not isinstance(value, Mapping):  # RabbitMQ writes [] for no arguments
        return {}
    return {name: from_json(inner) for name, inner in value.items()}


def _vhost(messaging: Messaging, entry: Json) -> VirtualHost:
    name = entry.get("vhost", "/")
    found = messaging.topology.vhosts.get(str(name))
    if found is None:
        raise Refused(Reason.NOT_FOUND, f"no vhost '{name}'")
    return found


def _user(entry: Json) -> User:
    tags = entry.get("tags", [])
    if isinstance(tags, str):  # up to RabbitMQ 3.8
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    algorithm = entry.get("hashing_algorithm", SHA256)
    return User(
        _text(entry, "name"),
        str(entry.get("password_hash") or ""),
        str(algorithm),
        tuple(map(str, tags)) if isinstance(tags, list) else (),
        _scram(entry),
    )


def _scram(entry: Json) -> tuple[ScramKeys, ...]:
    keys = entry.get("scram") or []
    try:
        return tuple(map(from_document, keys)) if isinstance(keys, list) else ()
    except InvalidKeys as error:
        raise InvalidAccount(str(error)) from None


def _exchange(entry: Json) -> ExchangeInfo:
    return ExchangeInfo(
        _text(entry, "name"),
        _text(entry, "type"),
        durable=entry.get("durable", True) is True,
        auto_delete=entry.get("auto_delete") is True,
        internal=entry.get("internal") is True,
        arguments=_table(entry),
    )
