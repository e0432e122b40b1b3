"""RabbitMQ's management API, the routes that its users' tools call.

Each handler translates: what is done, and how much of it, is the broker's. What does not exist here (policies, parameters,
shovels, federation, feature flags) is an empty list to those who look, and refused to those who want to make one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.broker.administration.messages import message_document
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.queue_arguments import read_settings
from trunkline.broker.state.arguments import from_json, table_from_json, to_json
from trunkline.broker.state.virtual_host import ExchangeInfo, VirtualHost
from trunkline.protocols.http.message import HttpError, Request, Response
from trunkline.protocols.http.router import Router
from trunkline.protocols.management.codec import (
    Json,
    Listing,
    flag_of,
    json_body,
    json_response,
    no_content,
    number_of,
    parameters_of,
    text_of,
)
from trunkline.protocols.management.documents import (
    all_bindings,
    channel_documents,
    connection_document,
    consumer_documents,
    exchange_document,
    listener_documents,
    memory_document,
    node_document,
    overview_document,
    queue_document,
)
from trunkline.protocols.management.service import NODE_NAME, Service
from trunkline.security.users import Access, Permission, User

_EMPTY: Final = (
    "policies", "operator-policies", "parameters", "global-parameters", "shovels", "federation-links", "feature-flags",
    "deprecated-features", "deprecated-features/used", "vhost-limits", "user-limits", "extensions",
    "stream/connections", "stream/publishers", "stream/consumers", "auth/attempts/{node}",
)  # fmt: skip
_EMPTY_OF_VHOST: Final = (
    "policies/{vhost}", "operator-policies/{vhost}", "parameters/{component}", "parameters/{component}/{vhost}", "shovels/{vhost}",
    "federation-links/{vhost}", "vhost-limits/{vhost}", "user-limits/{user}", "stream/connections/{vhost}",
    "stream/publishers/{vhost}", "stream/consumers/{vhost}",
)  # fmt: skip
_NONE_SUCH: Final = ("policies/{vhost}/{name}", "operator-policies/{vhost}/{name}", "parameters/{component}/{vhost}/{name}",
                     "global-parameters/{name}")  # fmt: skip
_MAX_DELETED_USERS: Final = 1_000
_MAX_REASON_CHARS: Final = 200
_ALIVENESS_QUEUE: Final = "aliveness-test"

Answer = Callable[[Request], Awaitable[Response]]


def add_routes(router: Router, service: Service) -> None:
    api = _Api(service)
    for method, path, handler in (
        ("GET", "overview", api.overview),
        ("GET", "cluster-name", api.cluster_name),
        ("GET", "nodes", api.nodes),
        ("GET", "nodes/{name}", api.node),
        ("GET", "nodes/{name}/memory", api.memory),
        ("GET", "whoami", api.whoami),
        ("GET", "auth", api.auth),
        ("GET", "aliveness-test/{vhost}", api.aliveness),
        ("GET", "definitions", api.export),
        ("POST", "definitions", api.load),
        ("GET", "definitions/{vhost}", api.export_vhost),
        ("POST", "definitions/{vhost}", api.load_vhost),
        ("GET", "vhosts", api.vhosts),
        ("GET", "vhosts/{vhost}", api.vhost),
        ("PUT", "vhosts/{vhost}", api.put_vhost),
        ("GET", "vhosts/{vhost}/permissions", api.vhost_permissions),
        ("GET", "queues", api.queues),
        ("GET", "queues/{vhost}", api.queues_of_vhost),
        ("GET", "queues/{vhost}/{name}", api.queue),
        ("PUT", "queues/{vhost}/{name}", api.put_queue),
        ("DELETE", "queues/{vhost}/{name}", api.delete_queue),
        ("GET", "queues/{vhost}/{name}/bindings", api.bindings_of_queue),
        ("DELETE", "queues/{vhost}/{name}/contents", api.purge),
        ("POST", "queues/{vhost}/{name}/get", api.get_messages),
        ("GET", "exchanges", api.exchanges),
        ("GET", "exchanges/{vhost}", api.exchanges_of_vhost),
        ("GET", "exchanges/{vhost}/{name}", api.exchange),
        ("PUT", "exchanges/{vhost}/{name}", api.put_exchange),
        ("DELETE", "exchanges/{vhost}/{name}", api.delete_exchange),
        ("POST", "exchanges/{vhost}/{name}/publish", api.publish),
        ("GET", "exchanges/{vhost}/{name}/bindings/source", api.bindings_from),
        ("GET", "exchanges/{vhost}/{name}/bindings/destination", api.bindings_to),
        ("GET", "bindings", api.bindings),
        ("GET", "bindings/{vhost}", api.bindings_of_vhost),
        ("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}", api.bindings_between),
        ("POST", "bindings/{vhost}/e/{source}/{kind}/{destination}", api.bind),
        ("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", api.binding),
        ("DELETE", "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", api.unbind),
        ("GET", "users", api.users),
        ("GET", "users/without-permissions", api.users_without_permissions),
        ("POST", "users/bulk-delete", api.delete_users),
        ("GET", "users/{user}", api.user),
        ("PUT", "users/{user}", api.put_user),
        ("DELETE", "users/{user}", api.delete_user),
        ("GET", "users/{user}/permissions", api.user_permissions),
        ("GET", "permissions", api.permissions),
        ("GET", "permissions/{vhost}/{user}", api.permission),
        ("PUT", "permissions/{vhost}/{user}", api.put_permission),
        ("GET", "listeners", api.listeners),
        ("GET", "connections", api.connections),
        ("GET", "connections/username/{user}", api.connections_of_user),
        ("DELETE", "connections/username/{user}", api.close_connections_of_user),
        ("GET", "connections/{name}", api.connection),
        ("DELETE", "connections/{name}", api.close_connection),
        ("GET", "connections/{name}/channels", api.channels_of_connection),
        ("GET", "vhosts/{vhost}/connections", api.connections_of_vhost),
        ("GET", "channels", api.channels),
        ("GET", "channels/{name}", api.channel),
        ("GET", "vhosts/{vhost}/channels", api.channels),
        ("GET", "consumers", api.consumers),
        ("GET", "consumers/{vhost}", api.consumers),
    ):
        router.add(method, f"/api/{path}", handler)
    for path in (*_EMPTY, *_EMPTY_OF_VHOST):
        router.add("GET", f"/api/{path}", api.nothing)
    for path in _NONE_SUCH:
        router.add("GET", f"/api/{path}", api.none_such)
        router.add("PUT", f"/api/{path}", api.not_here)
        router.add("DELETE", f"/api/{path}", api.none_such)


class _Api:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._administration = service.administration
        self._topology = service.topology

    # -- the whole -----------------------------------------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        vhosts = self._service.vhosts(principal)
        exchanges = sum(len(each.exchanges) for each in vhosts)
        node = await self._service.node()
        document = overview_document(self._service, self._service.queues(principal), node, exchanges=exchanges)
        return json_response(document)

    async def cluster_name(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response({"name": self._service.broker.cluster_id})

    async def nodes(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response([node_document(self._service, await self._service.node())])

    async def node(self, request: Request) -> Response:
        self._service.check_looker(request)
        _check_node(request)
        return json_response(node_document(self._service, await self._service.node()))

    async def memory(self, request: Request) -> Response:
        self._service.check_looker(request)
        _check_node(request)
        return json_response(memory_document(await self._service.node()))

    async def listeners(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response(listener_documents(self._service))

    async def whoami(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        return json_response({"name": principal.name, "tags": list(principal.tags), "is_internal_user": True})

    async def auth(self, request: Request) -> Response:
        return json_response({"oauth_enabled": False})

    async def aliveness(self, request: Request) -> Response:
        """A message through a queue and back, as old watchdogs ask for it."""
        vhost = self._service.check_vhost(request)
        queue = await self._service.messaging.queues.declare(vhost, QueueDeclaration(_ALIVENESS_QUEUE))
        messages = self._service.messages
        await messages.publish(vhost, "", queue.name, {}, b"test_message")
        found = await messages.take(vhost.name, queue.name, 1, "ack_requeue_false")
        if not found:
            raise HttpError(500, "the message that was published did not come back")
        return json_response({"status": "ok"})

    async def export(self, request: Request) -> Response:
        self._service.check_administrator(request)
        return json_response(self._administration.export_definitions())

    async def load(self, request: Request) -> Response:
        self._service.check_administrator(request)
        await self._administration.import_definitions(json_body(request))
        return no_content()

    async def export_vhost(self, request: Request) -> Response:
        self._service.check_administrator(request)
        vhost = self._service.check_vhost(request)
        whole = self._administration.export_definitions()
        part: Json = {
            name: whole[name] for name in ("rabbit_version", "rabbitmq_version", "product_name", "product_version")
        }
        for name in ("parameters", "policies", "queues", "exchanges", "bindings"):
            listed = whole.get(name)
            part[name] = [
                {key: value for key, value in each.items() if key != "vhost"}
                for each in (listed if isinstance(listed, list) else [])
                if each.get("vhost") == vhost.name
            ]
        return json_response({**part, "metadata": {}, "description": "", "default_queue_type": "classic"})

    async def load_vhost(self, request: Request) -> Response:
        self._service.check_administrator(request)
        vhost = self._service.check_vhost(request)
        document = json_body(request)
        given: Json = {}
        for name in ("queues", "exchanges", "bindings"):
            listed = document.get(name, [])
            if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
                raise HttpError(400, f"{name} must be a list of objects")
            given[name] = [{**each, "vhost": vhost.name} for each in listed]
        await self._administration.import_definitions(given)
        return no_content()

    async def nothing(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response([])

    async def none_such(self, request: Request) -> Response:
        self._service.check_looker(request)
        raise HttpError(404, "Not Found")

    async def not_here(self, request: Request) -> Response:
        self._service.check_looker(request)
        raise HttpError(
            400, "policies and parameters do not exist here: give queues their arguments when they are declared"
        )

    # -- virtual hosts -------------------------------------------------------------------------------------------------

    def _vhost_document(self, vhost: VirtualHost) -> Json:
        ready = sum(queue.cursor.ready for queue in vhost.queues.values())
        unacked = sum(queue.cursor.unacked for queue in vhost.queues.values())
        return {
            "name": vhost.name,
            "description": "",
            "tags": [],
            "default_queue_type": "classic",
            "metadata": {"description": "", "tags": [], "default_queue_type": "classic"},
            "protected_from_deletion": vhost.name == "/",
            "tracing": False,
            "cluster_state": {NODE_NAME: "running"},
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        }

    async def vhosts(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        vhosts = self._service.vhosts(principal)
        return Listing.asked(request).respond(vhosts, lambda each: each.name, self._vhost_document)

    async def vhost(self, request: Request) -> Response:
        return json_response(self._vhost_document(self._service.check_vhost(request)))

    async def put_vhost(self, request: Request) -> Response:
        principal = self._service.check_administrator(request)
        name = request.parameters["vhost"]
        there = name in self._topology.vhosts
        await self._administration.put_vhost(name)
        if not there and principal.name in self._service.accounts.users:
            await self._administration.put_permission(principal.name, name, configure=".*", write=".*", read=".*")
        return no_content(204 if there else 201)

    async def vhost_permissions(self, request: Request) -> Response:
        self._service.check_administrator(request)
        vhost = self._service.check_vhost(request)
        return json_response([each for each in self._permissions() if each["vhost"] == vhost.name])

    # -- queues --------------------------------------------------------------------------------------------------------

    def _respond_queues(self, request: Request, queues: list[Queue]) -> Response:
        document = lambda queue: queue_document(self._service, queue)  # noqa: E731
        return Listing.asked(request).respond(queues, lambda each: each.name, document)

    async def queues(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        return self._respond_queues(request, self._service.queues(principal))

    async def queues_of_vhost(self, request: Request) -> Response:
        return self._respond_queues(request, list(self._service.check_vhost(request).queues.values()))

    def _queue(self, request: Request) -> Queue:
        vhost = self._service.check_vhost(request)
        name = request.parameters["name"]
        queue = vhost.queues.get(name)
        if queue is None:
            raise HttpError(404, "Not Found")
        return queue

    async def queue(self, request: Request) -> Response:
        queue = self._queue(request)
        consumers = [
            consumer
            for connection in map(connection_document, self._administration.connections.listed())
            for consumer in consumer_documents(connection)
            if consumer["queue"] == {"name": queue.name, "vhost": queue.vhost}
        ]
        return json_response(
            {
                **queue_document(self._service, queue),
                "consumer_details": consumers,
                "incoming": [],
                "deliveries": [],
                "backing_queue_status": {},
            }
        )

    async def put_queue(self, request: Request) -> Response:
        vhost = self._service.check_vhost(request)
        name = request.parameters["name"]
        self._service.check_access(request, vhost, Access.CONFIGURE, name)
        body = json_body(request)
        arguments = table_from_json(body.get("arguments") or {})
        there = name in vhost.queues
        wish = QueueDeclaration(
            name,
            read_settings(name, vhost.name, arguments),
            durable=flag_of(body.get("durable"), True),
            auto_delete=flag_of(body.get("auto_delete")),
            arguments=arguments,
        )
        await self._service.messaging.queues.declare(vhost, wish)
        return no_content(204 if there else 201)

    async def delete_queue(self, request: Request) -> Response:
        queue = self._queue(request)
        vhost = self._service.check_vhost(request)
        self._service.check_access(request, vhost, Access.CONFIGURE, queue.name)
        queue.check_owner(self)
        given = parameters_of(request)
        await self._service.messaging.queues.delete(
            queue, if_unused=flag_of(given.get("if-unused")), if_empty=flag_of(given.get("if-empty"))
        )
        return no_content()

    async def purge(self, request: Request) -> Response:
        queue = self._queue(request)
        self._service.check_access(request, self._service.check_vhost(request), Access.READ, queue.name)
        queue.check_owner(self)
        await queue.cursor.purge()
        return no_content()

    async def get_messages(self, request: Request) -> Response:
        queue = self._queue(request)
        self._service.check_access(request, self._service.check_vhost(request), Access.READ, queue.name)
        body = json_body(request)
        count = number_of(body.get("count"), "count", 1, most=1_000)
        afterwards = str(body.get("ackmode", "ack_requeue_true"))
        encoding = str(body.get("encoding", "auto"))
        truncate = None if body.get("truncate") is None else number_of(body["truncate"], "truncate")
        found = await self._service.messages.take(queue.vhost, queue.name, count, afterwards)
        return json_response(
            [message_document(delivery, left, encoding=encoding, truncate=truncate) for delivery, left in found]
        )

    # -- exchanges -----------------------------------------------------------------------------------------------------

    async def exchanges(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        found = [(each.name, info) for each in self._service.vhosts(principal) for info in each.exchanges.values()]
        return Listing.asked(request).respond(found, lambda each: each[1].name, lambda each: exchange_document(*each))

    async def exchanges_of_vhost(self, request: Request) -> Response:
        vhost = self._service.check_vhost(request)
        found = list(vhost.exchanges.values())
        document = lambda info: exchange_document(vhost.name, info)  # noqa: E731
        return Listing.asked(request).respond(found, lambda each: each.name, document)

    def _exchange(self, request: Request) -> tuple[VirtualHost, ExchangeInfo]:
        vhost = self._service.check_vhost(request)
        name = request.parameters["name"]
        info = vhost.exchanges.get("" if name == "amq.default" else name)
        if info is None:
            raise HttpError(404, "Not Found")
        return vhost, info

    async def exchange(self, request: Request) -> Response:
        vhost, info = self._exchange(request)
        return json_response({**exchange_document(vhost.name, info), "incoming": [], "outgoing": []})

    async def put_exchange(self, request: Request) -> Response:
        vhost = self._service.check_vhost(request)
        name = request.parameters["name"]
        self._service.check_access(request, vhost, Access.CONFIGURE, name, "exchange")
        body = json_body(request)
        there = name in vhost.exchanges
        if not there and name.startswith("amq."):
            raise HttpError(400, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        info = ExchangeInfo(
            name,
            text_of(body, "type"),
            flag_of(body.get("durable"), True),
            flag_of(body.get("auto_delete")),
            flag_of(body.get("internal")),
            table_from_json(body.get("arguments") or {}),
        )
        await self._service.settled(self._topology.declare_exchange(vhost, info))
        return no_content(204 if there else 201)

    async def delete_exchange(self, request: Request) -> Response:
        vhost, info = self._exchange(request)
        if not info.name or info.name.startswith("amq."):
            raise HttpError(400, f"exchange '{info.name}' is the broker's own")
        self._service.check_access(request, vhost, Access.CONFIGURE, info.name, "exchange")
        if_unused = flag_of(parameters_of(request).get("if-unused"))
        await self._service.settled(self._topology.delete_exchange(vhost, info.name, if_unused=if_unused))
        return no_content()

    async def publish(self, request: Request) -> Response:
        vhost, info = self._exchange(request)
        self._service.check_access(request, vhost, Access.WRITE, info.name or "amq.default", "exchange")
        body = json_body(request)
        payload = text_of(body, "payload")
        encoding = str(body.get("payload_encoding", "string"))
        try:
            data = base64.b64decode(payload, validate=True) if encoding == "base64" else payload.encode()
        except (binascii.Error, ValueError):
            raise HttpError(400, "payload is not base64") from None
        properties = body.get("properties")
        routed = await self._service.messages.publish(
            vhost,
            info.name,
            text_of(body, "routing_key"),
            properties if isinstance(properties, dict) else {},
            data,
        )
        return json_response({"routed": routed})

    # -- bindings ------------------------------------------------------------------------------------------------------

    def _respond_bindings(self, request: Request, found: list[Json]) -> Response:
        return Listing.asked(request).respond(
            found, lambda each: str(each["source"]), lambda each: each, named="source"
        )

    async def bindings(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        found = [each for vhost in self._service.vhosts(principal) for each in all_bindings(vhost)]
        return self._respond_bindings(request, found)

    async def bindings_of_vhost(self, request: Request) -> Response:
        return self._respond_bindings(request, all_bindings(self._service.check_vhost(request)))

    async def bindings_of_queue(self, request: Request) -> Response:
        queue, vhost = self._queue(request), self._service.check_vhost(request)
        found = [
            each
            for each in all_bindings(vhost)
            if each["destination"] == queue.name and each["destination_type"] == "queue"
        ]
        return json_response(found)

    async def bindings_from(self, request: Request) -> Response:
        vhost, info = self._exchange(request)
        return json_response([each for each in all_bindings(vhost) if each["source"] == info.name])

    async def bindings_to(self, request: Request) -> Response:
        vhost, info = self._exchange(request)
        found = [
            each
            for each in all_bindings(vhost)
            if each["destination"] == info.name and each["destination_type"] == "exchange"
        ]
        return json_response(found)

    def _between(self, request: Request, vhost: VirtualHost) -> list[Json]:
        asked = request.parameters
        source = "" if asked["source"] == "amq.default" else asked["source"]
        kind = {"q": "queue", "e": "exchange"}.get(asked["kind"])
        if kind is None:
            raise HttpError(404, "Not Found")
        return [
            each
            for each in all_bindings(vhost)
            if (each["source"], each["destination"], each["destination_type"]) == (source, asked["destination"], kind)
        ]

    async def bindings_between(self, request: Request) -> Response:
        return json_response(self._between(request, self._service.check_vhost(request)))

    def _binding(self, request: Request, vhost: VirtualHost) -> Json:
        wanted = request.parameters["key"]
        for each in self._between(request, vhost):
            # The router has decoded what is encoded in a key.
            if wanted in (each["properties_key"], each["routing_key"] or "~"):
                return each
        raise HttpError(404, "Not Found")

    async def binding(self, request: Request) -> Response:
        return json_response(self._binding(request, self._service.check_vhost(request)))

    async def bind(self, request: Request) -> Response:
        vhost = self._service.check_vhost(request)
        asked, body = request.parameters, json_body(request)
        to_exchange = asked["kind"] == "e"
        self._check_binding(request, vhost)
        if not to_exchange and asked["destination"] not in vhost.queues:
            raise refusals.not_found("queue", asked["destination"], vhost.name)
        routing_key = str(body.get("routing_key", ""))
        arguments = table_from_json(body.get("arguments") or {})
        await self._service.settled(
            self._topology.bind(
                vhost, asked["source"], asked["destination"], routing_key, arguments, to_exchange=to_exchange
            )
        )
        made = [
            each
            for each in self._between(request, vhost)
            if each["routing_key"] == routing_key and each["arguments"] == to_json(arguments)
        ]
        where = str(made[0]["properties_key"]) if made else "~"
        return Response(201, headers=[("location", f"{asked['destination']}/{where}")])

    async def unbind(self, request: Request) -> Response:
        vhost = self._service.check_vhost(request)
        found, asked = self._binding(request, vhost), request.parameters
        self._check_binding(request, vhost)
        arguments = from_json(found["arguments"])
        await self._service.settled(
            self._topology.unbind(
                vhost,
                asked["source"],
                asked["destination"],
                str(found["routing_key"]),
                arguments if isinstance(arguments, dict) else {},
                to_exchange=asked["kind"] == "e",
            )
        )
        return no_content()

    def _check_binding(self, request: Request, vhost: VirtualHost) -> None:
        asked = request.parameters
        source, kind = asked["source"], "exchange" if asked["kind"] == "e" else "queue"
        if source in ("", "amq.default"):
            raise HttpError(400, "bindings of the default exchange cannot be changed")
        self._service.check_access(request, vhost, Access.WRITE, asked["destination"], kind)
        self._service.check_access(request, vhost, Access.READ, source, "exchange")

    # -- connections ---------------------------------------------------------------------------------------------------

    def _connections(self, request: Request) -> list[Json]:
        """Those of users that may be seen: an administrator sees all, others their own."""
        principal = self._service.check_looker(request)
        found = map(connection_document, self._administration.connections.listed())
        everybody = self._service.broker.access.may_manage(principal, change=True) or "monitoring" in principal.tags
        return [each for each in found if everybody or each["user"] == principal.name]

    def _respond_connections(self, request: Request, found: list[Json]) -> Response:
        return Listing.asked(request).respond(found, lambda each: str(each["name"]), lambda each: each)

    async def connections(self, request: Request) -> Response:
        return self._respond_connections(request, self._connections(request))

    async def connections_of_vhost(self, request: Request) -> Response:
        vhost = self._service.check_vhost(request).name
        return self._respond_connections(
            request, [each for each in self._connections(request) if each["vhost"] == vhost]
        )

    async def connections_of_user(self, request: Request) -> Response:
        user = request.parameters["user"]
        return self._respond_connections(request, [each for each in self._connections(request) if each["user"] == user])

    def _one(self, found: list[Json], name: str) -> Json:
        for each in found:
            if each["name"] == name:
                return each
        raise HttpError(404, "Not Found")

    async def connection(self, request: Request) -> Response:
        return json_response(self._one(self._connections(request), request.parameters["name"]))

    def _close(self, request: Request, connection: Json) -> None:
        reason = request.headers.get("x-reason", "Closed via management")[:_MAX_REASON_CHARS]
        self._administration.connections.close(int(str(connection["id"])), reason)

    async def close_connection(self, request: Request) -> Response:
        self._close(request, self._one(self._connections(request), request.parameters["name"]))
        return no_content()

    async def close_connections_of_user(self, request: Request) -> Response:
        self._service.check_administrator(request)
        for each in self._connections(request):
            if each["user"] == request.parameters["user"]:
                self._close(request, each)
        return no_content()

    def _channels(self, request: Request) -> list[Json]:
        wanted = request.parameters.get("vhost")
        return [
            channel
            for connection in self._connections(request)
            if wanted in (None, connection["vhost"])
            for channel in channel_documents(connection)
        ]

    async def channels(self, request: Request) -> Response:
        return self._respond_connections(request, self._channels(request))

    async def channel(self, request: Request) -> Response:
        return json_response(self._one(self._channels(request), request.parameters["name"]))

    async def channels_of_connection(self, request: Request) -> Response:
        connection = self._one(self._connections(request), request.parameters["name"])
        return json_response(channel_documents(connection))

    async def consumers(self, request: Request) -> Response:
        found = [
            consumer
            for connection in self._connections(request)
            for consumer in consumer_documents(connection)
            if request.parameters.get("vhost") in (None, connection["vhost"])
        ]
        return json_response(found)

    # -- users and permissions -----------------------------------------------------------------------------------------

    @staticmethod
    def _user_document(user: User) -> Json:
        return {
            "name": user.name,
            "password_hash": user.password_hash,
            "hashing_algorithm": user.hashing_algorithm,
            "tags": list(user.tags),
            "limits": {},
        }

    async def users(self, request: Request) -> Response:
        self._service.check_administrator(request)
        found = list(self._service.accounts.users.values())
        return Listing.asked(request).respond(found, lambda each: each.name, self._user_document)

    async def users_without_permissions(self, request: Request) -> Response:
        self._service.check_administrator(request)
        with_some = {user for user, _ in self._service.accounts.permissions}
        found = [each for each in self._service.accounts.users.values() if each.name not in with_some]
        return json_response([self._user_document(each) for each in found])

    async def user(self, request: Request) -> Response:
        self._service.check_administrator(request)
        user = self._service.accounts.users.get(request.parameters["user"])
        if user is None:
            raise HttpError(404, "Not Found")
        return json_response(self._user_document(user))

    async def put_user(self, request: Request) -> Response:
        self._service.check_administrator(request)
        name, body = request.parameters["user"], json_body(request)
        there = name in self._service.accounts.users
        tags = body.get("tags", [])
        given = [each.strip() for each in tags.split(",")] if isinstance(tags, str) else tags
        if not isinstance(given, list):
            raise HttpError(400, "tags must be text, or a list of it")
        clean = [str(each) for each in given if each]
        if isinstance(body.get("password"), str):
            await self._administration.put_user(name, text_of(body, "password"), clean)
        else:
            password_hash = text_of(body, "password_hash", "")
            user = {"name": name, "password_hash": password_hash, "tags": clean}
            if isinstance(body.get("hashing_algorithm"), str):
                user["hashing_algorithm"] = text_of(body, "hashing_algorithm")
            await self._administration.import_definitions({"users": [user]})
        return no_content(204 if there else 201)

    async def delete_user(self, request: Request) -> Response:
        self._service.check_administrator(request)
        await self._administration.delete_user(request.parameters["user"])
        return no_content()

    async def delete_users(self, request: Request) -> Response:
        self._service.check_administrator(request)
        names = json_body(request).get("users")
        if not isinstance(names, list) or len(names) > _MAX_DELETED_USERS:
            raise HttpError(400, f"users must be a list of at most {_MAX_DELETED_USERS} names")
        for name in names:
            if str(name) in self._service.accounts.users:
                await self._administration.delete_user(str(name))
        return no_content()

    def _permissions(self) -> list[Json]:
        return [
            {"user": user, "vhost": vhost, "configure": held.configure, "write": held.write, "read": held.read}
            for (user, vhost), held in self._service.accounts.permissions.items()
        ]

    async def permissions(self, request: Request) -> Response:
        self._service.check_administrator(request)
        return json_response(self._permissions())

    async def user_permissions(self, request: Request) -> Response:
        self._service.check_administrator(request)
        if request.parameters["user"] not in self._service.accounts.users:
            raise HttpError(404, "Not Found")
        return json_response([each for each in self._permissions() if each["user"] == request.parameters["user"]])

    async def permission(self, request: Request) -> Response:
        self._service.check_administrator(request)
        user, vhost = request.parameters["user"], self._service.check_vhost(request).name
        held: Permission | None = self._service.accounts.permissions.get((user, vhost))
        if held is None:
            raise HttpError(404, "Not Found")
        return json_response(
            {"user": user, "vhost": vhost, "configure": held.configure, "write": held.write, "read": held.read}
        )

    async def put_permission(self, request: Request) -> Response:
        self._service.check_administrator(request)
        vhost, user, body = self._service.check_vhost(request), request.parameters["user"], json_body(request)
        there = (user, vhost.name) in self._service.accounts.permissions
        if user not in self._service.accounts.users:
            raise HttpError(400, f"there is no user '{user}'")
        await self._administration.put_permission(
            user,
            vhost.name,
            configure=text_of(body, "configure"),
            write=text_of(body, "write"),
            read=text_of(body, "read"),
        )
        return no_content(204 if there else 201)


def _check_node(request: Request) -> None:
    if request.parameters["name"] != NODE_NAME:
        raise HttpError(404, "Not Found")
