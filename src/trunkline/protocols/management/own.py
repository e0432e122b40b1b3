"""Our own API, `/api/v1`: the log, whatever protocol wrote to it. `openapi` describes it, and is served with it.

Lists take the parameters of RabbitMQ's (`page`, `page_size`, `name`, `use_regex`, `sort`, `sort_reverse`, `columns`). Looking needs a tag
of RabbitMQ's management, changing the tag `administrator`. `follow` answers with server-sent events: `data:` and a JSON object.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Final

from trunkline.broker.administration.log_view import Search, new_record
from trunkline.log.store import TopicPartition
from trunkline.protocols.http.message import Handler, HttpError, Request, Response
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
from trunkline.protocols.management.documents import connection_document, overview_document
from trunkline.protocols.management.openapi import document as openapi_document
from trunkline.protocols.management.service import Service
from trunkline.version import VERSION

_EVENTS: Final = "text/event-stream; charset=utf-8"
_MAX_FOLLOWERS: Final = 200


def add_routes(router: Router, service: Service) -> None:
    api = OwnApi(service)
    for method, path, handler in api.routes():
        router.add(method, f"/api/v1/{path}", handler)


class OwnApi:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._followers = 0

    def routes(self) -> tuple[tuple[str, str, Handler], ...]:
        return (
            ("GET", "openapi.json", self.openapi),
            ("GET", "overview", self.overview),
            ("GET", "whoami", self.whoami),
            ("GET", "topics", self.topics),
            ("POST", "topics", self.create_topic),
            ("GET", "topics/{topic}", self.topic),
            ("PATCH", "topics/{topic}", self.alter_topic),
            ("DELETE", "topics/{topic}", self.delete_topic),
            ("GET", "topics/{topic}/records", self.records),
            ("POST", "topics/{topic}/records", self.produce),
            ("GET", "topics/{topic}/follow", self.follow),
            ("POST", "topics/{topic}/replay", self.replay),
            ("GET", "groups", self.groups),
            ("GET", "groups/{group}", self.group),
            ("DELETE", "groups/{group}", self.delete_group),
            ("POST", "groups/{group}/reset", self.reset_group),
            ("GET", "queues/{vhost}/{queue}/messages", self.peek),
            ("GET", "queues/{vhost}/{queue}/delayed", self.delayed),
            ("DELETE", "queues/{vhost}/{queue}/delayed/{id}", self.cancel),
            ("POST", "queues/{vhost}/{queue}/move", self.move),
            ("GET", "connections", self.connections),
            ("DELETE", "connections/{id}", self.close_connection),
            ("GET", "mqtt/sessions", self.sessions),
            ("GET", "mqtt/sessions/{client}", self.session),
            ("DELETE", "mqtt/sessions/{client}", self.end_session),
            ("GET", "mqtt/retained", self.retained),
            ("DELETE", "mqtt/retained", self.clear_retained),
            ("GET", "audit", self.audit),
            ("GET", "settings", self.settings),
        )

    # -- the whole -----------------------------------------------------------------------------------------------------

    async def openapi(self, request: Request) -> Response:
        return json_response(openapi_document())

    async def whoami(self, request: Request) -> Response:
        principal = request.principal
        return json_response(
            {"name": principal.name, "tags": list(principal.tags), "administrator": principal.administrator}
        )

    async def overview(self, request: Request) -> Response:
        """RabbitMQ's overview, and what there is beside it."""
        principal = self._service.check_looker(request)
        service, node = self._service, await self._service.node()
        exchanges = sum(len(each.exchanges) for each in service.vhosts(principal))
        rabbit = overview_document(service, service.queues(principal), node, exchanges=exchanges)
        appended = records = count = 0
        for topic in service.log.topics():
            if not topic["internal"]:
                count += 1
                records += int(str(topic["records"]))
            appended += int(str(topic["appended"]))
        mqtt, rates = service.broker.counters.mqtt, service.rates
        return json_response(
            {
                "version": VERSION,
                "cluster_id": service.broker.cluster_id,
                "uptime_ms": service.clock.wall_ms() - service.started_ms,
                "blocked": service.broker.space.blocked,
                "node": node._asdict(),
                "listeners": [
                    {"name": name, "host": host, "port": port}
                    for name, (host, port) in service.broker.listeners.items()
                ],
                "totals": {
                    "topics": count,
                    "records": records,
                    "groups": len(service.broker.groups.list_groups()),
                    "connections": service.broker.counters.connections,
                    **{name: value for name, value in _objects(rabbit, "object_totals") if name != "connections"},
                },
                "queue_totals": dict(_objects(rabbit, "queue_totals")),
                "rates": {
                    "log": rates.of(("log", "appended"), appended),
                    "publish": rates.of(("all", "publish"), _figure(rabbit, "publish")),
                    "deliver": rates.of(("all", "deliver"), _figure(rabbit, "deliver")),
                    "acknowledge": rates.of(("all", "ack"), _figure(rabbit, "ack")),
                    "mqtt_in": rates.of(("mqtt", "in"), mqtt.messages_received),
                    "mqtt_out": rates.of(("mqtt", "out"), mqtt.messages_sent),
                },
                "unsent_bytes": service.broker.counters.unsent_bytes,
            }
        )

    async def settings(self, request: Request) -> Response:
        self._service.check_administrator(request)
        broker = self._service.broker
        return json_response(
            {
                "limits": broker.limits._asdict(),
                "auto_create_topics": broker.settings.auto_create_topics,
                "num_partitions": broker.settings.num_partitions,
                "topic_defaults": dict(broker.settings.topic_defaults),
            }
        )

    async def audit(self, request: Request) -> Response:
        self._service.check_administrator(request)
        given = parameters_of(request)
        offset = number_of(given["offset"], "offset") if "offset" in given else None
        page = await self._service.broker.audit.read(offset, number_of(given.get("count"), "count", 100, most=1_000))
        return json_response({"events": page.events, "next": page.following})

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topics(self, request: Request) -> Response:
        principal = self._service.check_looker(request)
        shown = [
            each
            for each in self._service.log.topics()
            if principal.administrator or not (each["internal"] or each["ephemeral"])
        ]
        return Listing.asked(request).respond(shown, lambda each: str(each["name"]), self._with_rate)

    def _with_rate(self, topic: Json) -> Json:
        appended = int(str(topic["appended"]))
        return {**topic, "rate": round(self._service.rates.of(("topic", str(topic["name"])), appended), 3)}

    async def create_topic(self, request: Request) -> Response:
        self._service.check_administrator(request)
        body = json_body(request)
        config = body.get("config", {})
        if not isinstance(config, dict):
            raise HttpError(400, "config must be an object")
        name = text_of(body, "name")
        partitions = None if body.get("partitions") is None else number_of(body["partitions"], "partitions", least=1)
        await self._service.broker.create_topic(name, partitions, {key: str(value) for key, value in config.items()})
        return json_response(self._service.log.topic(name), 201)

    def _topic_name(self, request: Request, *, change: bool = False) -> str:
        """The topic that the path names; the broker's own are an administrator's to look at."""
        principal = self._service.check_looker(request)
        name = request.parameters["topic"]
        info = self._service.broker.topic(name)
        if change or (info is not None and info.internal):
            self._service.check_administrator(request)
        if info is None or (info.ephemeral and not principal.administrator):
            raise HttpError(404, f"there is no topic {name}")
        return name

    async def topic(self, request: Request) -> Response:
        return json_response(self._with_rate(self._service.log.topic(self._topic_name(request))))

    async def alter_topic(self, request: Request) -> Response:
        name = self._topic_name(request, change=True)
        body = json_body(request)
        if body.get("partitions") is not None:
            await self._service.broker.grow_topic(name, number_of(body["partitions"], "partitions", least=1))
        config = body.get("config")
        if isinstance(config, dict):
            info = self._service.broker.topic(name)
            kept = dict(info.config.overrides) if info is not None else {}
            for key, value in config.items():
                if value is None:
                    kept.pop(key, None)
                else:
                    kept[key] = str(value)
            await self._service.broker.configure_topic(name, kept)
        return json_response(self._service.log.topic(name))

    async def delete_topic(self, request: Request) -> Response:
        await self._service.broker.delete_topic(self._topic_name(request, change=True))
        return no_content()

    # -- records -------------------------------------------------------------------------------------------------------

    async def records(self, request: Request) -> Response:
        name, given = self._topic_name(request), parameters_of(request)
        self._service.check_readable(request, name)
        tp = TopicPartition(name, _partition(given))
        self._check_partition(tp)
        count = number_of(given.get("count"), "count", 50, least=1, most=1_000)
        if "time" in given:
            offset = await self._service.log.start_of(tp, at_ms=number_of(given["time"], "time"))
        elif "offset" in given:
            offset = number_of(given["offset"], "offset")
        else:
            offset = await self._service.log.start_of(tp, last=count)
        search = Search(given.get("text", ""), given.get("key"), given.get("header", ""))
        return json_response(await self._service.log.records(tp, offset, count, search))

    def _check_partition(self, tp: TopicPartition) -> None:
        info = self._service.broker.topic(tp.topic)
        if info is None or tp.partition >= info.partitions:
            raise HttpError(404, f"there is no partition {tp.partition} of {tp.topic}")

    async def produce(self, request: Request) -> Response:
        name = self._topic_name(request, change=True)
        body = json_body(request)
        headers = body.get("headers") or {}
        if not isinstance(headers, dict):
            raise HttpError(400, "headers must be an object")
        key = body.get("key")
        record = new_record(
            None if key is None else str(key).encode(),
            _bytes(body, "value", "value_base64"),
            {str(header): str(value) for header, value in headers.items()},
        )
        tp = TopicPartition(name, number_of(body.get("partition"), "partition", 0))
        self._check_partition(tp)
        offset = await self._service.log.produce(name, tp.partition, [record])
        return json_response({"topic": name, "partition": tp.partition, "offset": offset}, 201)

    async def follow(self, request: Request) -> Response:
        name, given = self._topic_name(request), parameters_of(request)
        self._service.check_readable(request, name)
        tp = TopicPartition(name, _partition(given))
        self._check_partition(tp)
        if self._followers >= _MAX_FOLLOWERS:
            raise HttpError(503, f"there are {_MAX_FOLLOWERS} live views already")
        offset = number_of(given["offset"], "offset") if "offset" in given else await self._service.log.start_of(tp)
        search = Search(given.get("text", ""), given.get("key"), given.get("header", ""))
        return Response(
            200, content_type=_EVENTS, headers=[("cache-control", "no-store")], stream=self._live(tp, offset, search)
        )

    async def _live(self, tp: TopicPartition, offset: int, search: Search) -> AsyncIterator[bytes]:
        self._followers += 1
        try:
            async for found in self._service.log.follow(tp, offset, search):
                yield b": still there\n\n" if found is None else _event(found)
        finally:
            self._followers -= 1

    async def replay(self, request: Request) -> Response:
        name = self._topic_name(request, change=True)
        body = json_body(request)
        tp = TopicPartition(name, number_of(body.get("partition"), "partition", 0))
        self._check_partition(tp)
        first, last = number_of(body.get("first"), "first", 0), number_of(body.get("last"), "last", 2**62)
        target = text_of(body, "target")
        if self._service.broker.topic(target) is None:
            raise HttpError(404, f"there is no topic or queue {target}")
        return json_response({"replayed": await self._service.log.replay(tp, first, last, target)})

    # -- groups --------------------------------------------------------------------------------------------------------

    async def groups(self, request: Request) -> Response:
        self._service.check_looker(request)
        return Listing.asked(request).respond(
            self._service.log.groups(), lambda each: str(each["name"]), lambda each: each
        )

    async def group(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response(self._service.log.group(request.parameters["group"]))

    async def delete_group(self, request: Request) -> Response:
        self._service.check_administrator(request)
        await self._service.broker.groups.delete_group(request.parameters["group"])
        return no_content()

    async def reset_group(self, request: Request) -> Response:
        self._service.check_administrator(request)
        body = json_body(request)
        topic = text_of(body, "topic")
        info = self._service.broker.topic(topic)
        if info is None:
            raise HttpError(404, f"there is no topic {topic}")
        to = body.get("to", "earliest")
        wanted: dict[TopicPartition, int] = {}
        for number in range(info.partitions):
            tp = TopicPartition(topic, number)
            bounds = self._service.broker.bounds(tp)
            if to == "earliest":
                wanted[tp] = bounds.log_start_offset
            elif to == "latest":
                wanted[tp] = bounds.high_watermark
            elif body.get("time") is not None:
                wanted[tp] = await self._service.log.start_of(tp, at_ms=number_of(body["time"], "time"))
            else:
                wanted[tp] = number_of(to, "to")
        preview = flag_of(body.get("preview"))
        changes = await self._service.log.reset_group(request.parameters["group"], wanted, preview=preview)
        return json_response({"preview": preview, "changes": changes})

    # -- queues --------------------------------------------------------------------------------------------------------

    def _queue(self, request: Request, *, change: bool = False) -> tuple[str, str]:
        vhost = self._service.check_vhost(request)
        if change:
            self._service.check_administrator(request)
        return vhost.name, request.parameters["queue"]

    async def peek(self, request: Request) -> Response:
        """What is in a queue, without taking it."""
        vhost, queue = self._queue(request)
        given = parameters_of(request)
        offset = number_of(given["offset"], "offset") if "offset" in given else None
        count = number_of(given.get("count"), "count", 50, most=1_000)
        return json_response(await self._service.administration.peek(vhost, queue, count, offset))

    async def delayed(self, request: Request) -> Response:
        vhost, queue = self._queue(request)
        return json_response(self._service.administration.scheduled(vhost, queue))

    async def cancel(self, request: Request) -> Response:
        vhost, queue = self._queue(request, change=True)
        await self._service.administration.cancel_scheduled(vhost, queue, number_of(request.parameters["id"], "id"))
        return no_content()

    async def move(self, request: Request) -> Response:
        vhost, queue = self._queue(request, change=True)
        body = json_body(request)
        count = number_of(body.get("count"), "count", 1_000_000)
        moved = await self._service.administration.move(vhost, queue, text_of(body, "target"), count)
        return json_response({"moved": moved})

    # -- connections, and MQTT -----------------------------------------------------------------------------------------

    async def connections(self, request: Request) -> Response:
        self._service.check_looker(request)
        found = [connection_document(each) for each in self._service.administration.connections.listed()]
        return Listing.asked(request).respond(found, lambda each: str(each["name"]), lambda each: each)

    async def close_connection(self, request: Request) -> Response:
        self._service.check_administrator(request)
        number = number_of(request.parameters["id"], "id")
        self._service.administration.connections.close(number, "Closed via management")
        return no_content()

    async def sessions(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response(self._service.administration.sessions.listed(parameters_of(request).get("name", "")))

    async def session(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response(self._service.administration.sessions.one(request.parameters["client"]))

    async def end_session(self, request: Request) -> Response:
        self._service.check_administrator(request)
        self._service.administration.sessions.end(request.parameters["client"])
        return no_content()

    async def retained(self, request: Request) -> Response:
        """Who looks at retained messages sees some of their contents: that is for administrators and `monitoring`."""
        principal = self._service.check_looker(request)
        if "monitoring" not in principal.tags:
            self._service.check_administrator(request)
        wanted = parameters_of(request).get("filter", "#")
        return json_response(self._service.administration.sessions.retained(wanted))

    async def clear_retained(self, request: Request) -> Response:
        self._service.check_administrator(request)
        wanted = parameters_of(request).get("filter")
        if not wanted:
            raise HttpError(400, "say which: filter")
        return json_response({"cleared": self._service.administration.sessions.clear_retained(wanted)})


def _partition(given: dict[str, str]) -> int:
    return number_of(given.get("partition"), "partition", 0)


def _bytes(body: Json, name: str, encoded_name: str) -> bytes | None:
    if encoded_name in body:
        try:
            return base64.b64decode(text_of(body, encoded_name), validate=True)
        except (binascii.Error, ValueError):
            raise HttpError(400, f"{encoded_name} is not base64") from None
    value = body.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _event(value: Json) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), default=str).encode() + b"\n\n"


def _objects(document: Json, name: str) -> list[tuple[str, object]]:
    part = document.get(name)
    return list(part.items()) if isinstance(part, dict) else []


def _figure(document: Json, name: str) -> float:
    part = document.get("message_stats")
    value = part.get(name) if isinstance(part, dict) else 0
    return float(value) if isinstance(value, int | float) else 0.0
