"""The topology: virtual hosts, exchanges and bindings, as records of `__topology`, folded at start.

    vhost:<name>                                   {}
    exchange:["vhost","name"]                      {"kind", "durable", "auto_delete", "internal", "arguments"}
    binding:["vhost","source","destination",…]     {"vhost", "source", "destination", "to_exchange", "routing_key", "arguments"}

A tombstone removes. The users in the same topic are the matter of `accounts`, queues have records of their own, topics are the
store's. What is not durable (exchanges, their bindings, bindings to queues that are not durable) has no record and is gone
after a restart.

Every change is made in memory first and recorded in the same step, so the order of the records is the order of the
changes; what it returns is done when the record is on disk, and a protocol answers its client after that. A crash between
the two forgets a change that nobody was told of.

Names, equality of declarations and what may be deleted follow RabbitMQ, texts included.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Iterable, Sequence

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.arguments import Arguments, table_from_json, to_json
from trunkline.broker.state.virtual_host import ALTERNATE_ARGUMENT, ExchangeInfo, VirtualHost
from trunkline.clock import Clock
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Appended, Recorded
from trunkline.routing.errors import (
    AccessRefused,
    InvalidBinding,
    InvalidPattern,
    LimitReached,
    RoutingError,
    UnknownExchange,
    UnknownExchangeKind,
    UnknownQueue,
)
from trunkline.routing.router import Route
from trunkline.security.users import DEFAULT_VHOST

logger = logging.getLogger(__name__)

MAX_VHOSTS = 1_000


class Topology:
    def __init__(self, store: LogStore, clock: Clock) -> None:
        self._topic = StateTopic(store, clock, TOPOLOGY_TOPIC)
        self.vhosts: dict[str, VirtualHost] = {}

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fold the records into exchanges. `restore_bindings` comes after the queues are there."""
        documents: dict[str, dict[str, dict[str, object]]] = {}
        for record_key, value in (await self._topic.latest()).items():
            kind, _, name = record_key.decode("utf-8", "replace").partition(":")
            if kind in _KINDS:
                documents.setdefault(kind, {})[name] = json.loads(value)
        for name in documents.get("vhost", {}):
            self.vhosts[name] = VirtualHost(name)
        for key, document in documents.get("exchange", {}).items():
            self._restore_exchange(key, document)
        self._bindings = list(documents.get("binding", {}).values())
        if not self.vhosts:
            await settled(self.add_vhost(DEFAULT_VHOST))

    def _restore_exchange(self, key: str, document: dict[str, object]) -> None:
        vhost_name, name = json.loads(key)
        vhost = self.vhosts.get(vhost_name)
        if vhost is None or name in vhost.exchanges:
            return
        info = ExchangeInfo(
            name,
            str(document["kind"]),
            durable=True,
            auto_delete=bool(document.get("auto_delete")),
            internal=bool(document.get("internal")),
            arguments=table_from_json(document.get("arguments")),
        )
        try:
            vhost.add_exchange(info)
        except RoutingError as error:
            logger.error("exchange %s of vhost %s was not restored: %s", name, vhost_name, error)

    def restore_bindings(self) -> None:
        for document in self._bindings:
            vhost = self.vhosts.get(str(document["vhost"]))
            if vhost is None:
                continue
            try:
                vhost.router.bind(
                    str(document["source"]),
                    str(document["destination"]),
                    str(document["routing_key"]),
                    table_from_json(document.get("arguments")),
                    to_exchange=bool(document["to_exchange"]),
                )
            except (UnknownQueue, UnknownExchange):
                continue  # the end of it went in the same instant as the broker
            except RoutingError as error:
                logger.error("a binding of vhost %s was not restored: %s", vhost.name, error)
        self._bindings = []

    _bindings: list[dict[str, object]] = []  # noqa: RUF012 (replaced, never changed)

    # -- virtual hosts -------------------------------------------------------------------------------------------

    def add_vhost(self, name: str) -> Recorded:
        if name in self.vhosts:
            return None
        if len(self.vhosts) >= MAX_VHOSTS:
            raise Refused(Reason.RESOURCE_ERROR, f"there are {MAX_VHOSTS} virtual hosts already")
        self.vhosts[name] = VirtualHost(name)
        return self._record([(f"vhost:{name}", {})])

    def vhost_of_record(self, name: str) -> VirtualHost:
        """The virtual host that a record names. If its own record was lost, it is there all the same, as long as we run."""
        found = self.vhosts.get(name)
        if found is None:
            logger.error("virtual host %s has no record, but queues", name)
            found = self.vhosts[name] = VirtualHost(name)
        return found

    # -- exchanges -----------------------------------------------------------------------------------------------

    def declare_exchange(self, vhost: VirtualHost, info: ExchangeInfo) -> Recorded:
        existing = vhost.exchanges.get(info.name)
        if existing is not None:
            check_equivalent(existing, info, vhost.name)
            return None
        alternate = info.arguments.get(ALTERNATE_ARGUMENT, "")
        if not isinstance(alternate, str):
            raise refusals.precondition(
                f"invalid type '{refusals.type_name(alternate)}' for arg '{ALTERNATE_ARGUMENT}' "
                f"in exchange '{info.name}' in vhost '{vhost.name}'"
            )
        try:
            vhost.add_exchange(info)
        except UnknownExchangeKind:
            if info.delayed:
                raise refusals.precondition(
                    "Invalid argument, 'x-delayed-type' must be an existing exchange type"
                ) from None
            raise Refused(Reason.COMMAND_INVALID, f"unknown exchange type '{info.routing_kind}'") from None
        except LimitReached as error:
            raise Refused(Reason.RESOURCE_ERROR, str(error)) from None
        if not info.durable:
            return None
        document: dict[str, object] = {
            "kind": info.kind,
            "auto_delete": info.auto_delete,
            "internal": info.internal,
            "arguments": to_json(info.arguments),
        }
        return self._record([(_exchange_key(vhost.name, info.name), document)])

    def delete_exchange(self, vhost: VirtualHost, name: str, *, if_unused: bool = False) -> Recorded:
        info = vhost.exchanges.get(name)
        if info is None:
            return None  # as in RabbitMQ, deleting what is not there succeeds
        if if_unused and vhost.router.has_bindings(name):
            raise refusals.precondition(f"exchange '{name}' in vhost '{vhost.name}' in use")
        gone = vhost.router.delete_exchange(name)
        vhost.forget_exchange(name)
        changes = [(_binding_key(vhost.name, route), None) for route in gone]
        if info.durable:
            changes.append((_exchange_key(vhost.name, name), None))
        self._delete_unused(vhost, gone)
        return self._record(changes)

    def _delete_unused(self, vhost: VirtualHost, gone: Iterable[Route]) -> None:
        """Exchanges that go with their last binding."""
        for source in {route.source for route in gone}:
            info = vhost.exchanges.get(source)
            if info is not None and info.auto_delete and not vhost.router.has_bindings(source):
                self.delete_exchange(vhost, source)

    # -- bindings ------------------------------------------------------------------------------------------------

    def bind(
        self,
        vhost: VirtualHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: Arguments,
        *,
        to_exchange: bool = False,
    ) -> Recorded:
        route = Route(source, destination, to_exchange, routing_key, arguments)
        try:
            added = vhost.router.bind(source, destination, routing_key, arguments, to_exchange=to_exchange)
        except RoutingError as error:
            raise self._binding_refused(vhost, route, error) from None
        if not added or not self._durable(vhost, route):
            return None
        document: dict[str, object] = {
            "vhost": vhost.name,
            "source": source,
            "destination": destination,
            "to_exchange": to_exchange,
            "routing_key": routing_key,
            "arguments": to_json(arguments),
        }
        return self._record([(_binding_key(vhost.name, route), document)])

    def unbind(
        self,
        vhost: VirtualHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: Arguments,
        *,
        to_exchange: bool = False,
    ) -> Recorded:
        """Remove a binding. One that is not there, also for want of its ends, is no error: clients undo things twice."""
        route = Route(source, destination, to_exchange, routing_key, arguments)
        durable = self._durable(vhost, route)
        try:
            removed = vhost.router.unbind(source, destination, routing_key, arguments, to_exchange=to_exchange)
        except (UnknownExchange, UnknownQueue):
            return None
        except RoutingError as error:
            raise self._binding_refused(vhost, route, error) from None
        if not removed:
            return None
        self._delete_unused(vhost, [route])
        return self._record([(_binding_key(vhost.name, route), None)]) if durable else None

    def forget_queue(self, vhost: VirtualHost, queue: Queue) -> Recorded:
        """Remove a queue that is being deleted from the routes, with its bindings."""
        if vhost.queues.get(queue.name) is not queue:
            return None
        gone = vhost.remove_queue(queue.name)
        self._delete_unused(vhost, gone)
        if not queue.durable:
            return None
        return self._record([(_binding_key(vhost.name, route), None) for route in gone])

    def _durable(self, vhost: VirtualHost, route: Route) -> bool:
        source = vhost.exchanges.get(route.source)
        if route.to_exchange:
            target = vhost.exchanges.get(route.destination)
            return source is not None and target is not None and source.durable and target.durable
        queue = vhost.queues.get(route.destination)
        return source is not None and queue is not None and source.durable and queue.durable

    def _binding_refused(self, vhost: VirtualHost, route: Route, error: RoutingError) -> Refused:
        if isinstance(error, UnknownQueue):
            return refusals.not_found("queue", route.destination, vhost.name)
        if isinstance(error, UnknownExchange):
            missing = route.source if route.source not in vhost.exchanges else route.destination
            return refusals.not_found("exchange", missing, vhost.name)
        if isinstance(error, AccessRefused):
            return refusals.access_refused("operation not permitted on the default exchange")
        if isinstance(error, InvalidBinding | InvalidPattern):
            return refusals.precondition(str(error))
        return Refused(Reason.RESOURCE_ERROR, str(error))

    # -- records -------------------------------------------------------------------------------------------------

    def _record(self, changes: Sequence[tuple[str, dict[str, object] | None]]) -> Recorded:
        if not changes:
            return None
        records = [
            state_record(
                key.encode(), None if document is None else json.dumps(document, separators=(",", ":")).encode()
            )
            for key, document in changes
        ]
        return self._topic.put(records, Durability.DISK)


async def settled(recorded: Awaitable[Appended] | None) -> None:
    """Wait until a change is on disk."""
    if recorded is not None:
        await recorded


_KINDS = frozenset({"vhost", "exchange", "binding"})


def check_equivalent(existing: ExchangeInfo, info: ExchangeInfo, vhost: str) -> None:
    """Refused unless an exchange is declared again just as it is."""
    for argument, received, current in (
        ("type", info.kind, existing.kind),
        ("durable", info.durable, existing.durable),
        ("auto_delete", info.auto_delete, existing.auto_delete),
        ("internal", info.internal, existing.internal),
    ):
        if received != current:
            shown = (f"'{str(received).lower()}'", f"'{str(current).lower()}'")
            raise refusals.inequivalent(argument, "exchange", info.name, vhost, *shown)
    for argument in (ALTERNATE_ARGUMENT, "x-delayed-type"):
        given, held = info.arguments.get(argument), existing.arguments.get(argument)
        if given != held:
            raise refusals.inequivalent(
                argument, "exchange", info.name, vhost, refusals.shown(given, held), refusals.shown(held, given)
            )


def _exchange_key(vhost: str, name: str) -> str:
    return "exchange:" + json.dumps([vhost, name])


def _binding_key(vhost: str, route: Route) -> str:
    arguments = json.dumps(to_json(route.arguments), sort_keys=True) if route.arguments else ""
    kind = "exchange" if route.to_exchange else "queue"
    return "binding:" + json.dumps([vhost, route.source, kind, route.destination, route.routing_key, arguments])
