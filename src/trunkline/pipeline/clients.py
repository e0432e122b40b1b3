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
from typing import Protocol

from trunkline.client.client import Client
from trunkline.client.login import Login

MAX_CLIENTS = 8

_clients: dict[tuple[int, str, int, Login], Client] = {}


class Where(Protocol):
    """Which broker, and who asks: what the options of source and sink have in common."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def login(self) -> Login: ...


def client_for(where: Where, *, known_to_run: bool = False) -> Client:
    key = (os.getpid(), where.bootstrap, where.request_timeout_ms, where.login)
    client = _clients.pop(key, None)
    if client is None:
        while len(_clients) >= MAX_CLIENTS:
            _clients.pop(next(iter(_clients))).close()
        client = Client(
            where.bootstrap,
            client_id="trunkline-spark",
            timeout_ms=where.request_timeout_ms,
            known_to_run=known_to_run,
            login=where.login,
        )
    client.forget()
    _clients[key] = client
    return client
