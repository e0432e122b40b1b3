"""One client per process and broker, so that the tasks of a stream do not connect anew for every batch.

Spark's Python workers are forked and used again; a client that was made before a fork belongs to the parent, so clients
are kept by process. A client whose connection is lost opens another by itself. What it remembers of the cluster is dropped
when it is handed out again: a topic may have grown, or been made anew, since the last batch.

A worker may be new while the broker restarts. Where the driver has spoken to the broker before, in tasks that read and in
those of streams, that is `known_to_run`, and the worker waits for the broker as the driver does.

Limit: `MAX_CLIENTS` per process; the oldest is closed.
"""

from __future__ import annotations

import os

from trunkline.client.client import Client

MAX_CLIENTS = 8

_clients: dict[tuple[int, str, int], Client] = {}


def client_for(bootstrap: str, request_timeout_ms: int, *, known_to_run: bool = False) -> Client:
    key = (os.getpid(), bootstrap, request_timeout_ms)
    client = _clients.pop(key, None)
    if client is None:
        while len(_clients) >= MAX_CLIENTS:
            _clients.pop(next(iter(_clients))).close()
        client = Client(
            bootstrap, client_id="trunkline-spark", timeout_ms=request_timeout_ms, known_to_run=known_to_run
        )
    client.forget()
    _clients[key] = client
    return client
