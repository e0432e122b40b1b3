"""The OpenAPI document of our own API. Its paths are checked against the routes by a test, so it cannot fall behind."""

from __future__ import annotations

from typing import Final

from trunkline.version import VERSION

Json = dict[str, object]

_LIST: Final = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns")
_SEARCH: Final = ("partition", "offset", "text", "key", "header")
# Method, path, what it does, parameters of the query, members of the body.
OPERATIONS: Final[tuple[tuple[str, str, str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("get", "/openapi.json", "This document", (), ()),
    ("get", "/overview", "Totals, rates and the process", (), ()),
    ("get", "/whoami", "Who asks", (), ()),
    ("get", "/topics", "Topics", _LIST, ()),
    ("post", "/topics", "Create a topic", (), ("name", "partitions", "config")),
    ("get", "/topics/{topic}", "A topic with its partitions and settings", (), ()),
    ("patch", "/topics/{topic}", "Give it more partitions, or other settings", (), ("partitions", "config")),
    ("delete", "/topics/{topic}", "Delete a topic", (), ()),
    ("get", "/topics/{topic}/records", "Records by offset, time, key, header or text", (*_SEARCH, "time", "count"), ()),
    ("post", "/topics/{topic}/records", "Append a record",
     (), ("key", "value", "value_base64", "headers", "partition")),
    ("get", "/topics/{topic}/follow", "Records as they are appended: server-sent events", _SEARCH, ()),
    ("post", "/topics/{topic}/replay", "Append a range of records to another topic or queue",
     (), ("partition", "first", "last", "target")),
    ("get", "/groups", "Consumer groups and how far they are behind", _LIST, ()),
    ("get", "/groups/{group}", "A group, its members and its offsets", (), ()),
    ("delete", "/groups/{group}", "Delete a group without members", (), ()),
    ("post", "/groups/{group}/reset", "Set a group's offsets, or preview it", (), ("topic", "to", "time", "preview")),
    ("get", "/queues/{vhost}/{queue}/messages", "What is in a queue, without taking it", ("offset", "count"), ()),
    ("get", "/queues/{vhost}/{queue}/delayed", "What waits for its time", (), ()),
    ("delete", "/queues/{vhost}/{queue}/delayed/{id}", "Cancel a delayed message", (), ()),
    ("post", "/queues/{vhost}/{queue}/move", "Move messages to another queue", (), ("target", "count")),
    ("get", "/connections", "Connections of every protocol", _LIST, ()),
    ("delete", "/connections/{id}", "Close a connection", (), ()),
    ("get", "/mqtt/sessions", "MQTT sessions", ("name",), ()),
    ("get", "/mqtt/sessions/{client}", "A session with its subscriptions and places in the log", (), ()),
    ("delete", "/mqtt/sessions/{client}", "End a session, and its connection", (), ()),
    ("get", "/mqtt/retained", "Retained messages", ("filter",), ()),
    ("delete", "/mqtt/retained", "Forget retained messages", ("filter",), ()),
    ("get", "/audit", "Logins, refusals and changes", ("offset", "count"), ()),
    ("get", "/settings", "What the broker runs with", (), ()),
)  # fmt: skip


def document() -> Json:
    paths: dict[str, Json] = {}
    for method, path, text, query, body in OPERATIONS:
        names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
        parameters: list[Json] = [_parameter(name, "path") for name in names] + [
            _parameter(name, "query") for name in query
        ]
        operation: Json = {
            "summary": text,
            "parameters": parameters,
            "responses": {
                "200": {"description": "As asked"},
                "400": {"description": "Not as it should be: `reason` says what"},
                "401": {"description": "Not logged in, or not allowed"},
                "404": {"description": "No such thing"},
            },
        }
        if body:
            schema: Json = {"type": "object", "properties": {name: {} for name in body}}
            operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths.setdefault(f"/api/v1{path}", {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trunkline", "version": VERSION, "description": "One log, every way to message."},
        "paths": paths,
        "components": {"securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
        "security": [{"basic": []}],
    }


def _parameter(name: str, where: str) -> Json:
    return {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
