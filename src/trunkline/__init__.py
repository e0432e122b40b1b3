"""Trunkline: one log, every way to message.

`connect` is the Python API (`trunkline.aio.connect` the same for asyncio): queues, publish/subscribe, streams, groups, spaces.
`Broker` and `run` start a real broker inside an application or a test; `trunkline serve` starts one as a process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trunkline import compiled

__version__ = "0.1.0"
__all__ = [
    "BodyRefused",
    "Broker",
    "Channel",
    "Connection",
    "ConnectionLost",
    "Content",
    "Handle",
    "LeaseLost",
    "Message",
    "MessageId",
    "NoRoute",
    "Queue",
    "QueueFull",
    "Record",
    "Refused",
    "RequestFailed",
    "Retry",
    "Stream",
    "Timeout",
    "Topic",
    "Transaction",
    "TrunklineError",
    "Type",
    "__version__",
    "connect",
    "run",
]

CODECS_COMPILED = compiled.choose()  # before any codec is imported

if TYPE_CHECKING:
    from trunkline.api.errors import (
        BodyRefused,
        ConnectionLost,
        LeaseLost,
        NoRoute,
        QueueFull,
        Refused,
        RequestFailed,
        Timeout,
        TrunklineError,
    )
    from trunkline.api.faces import Connection, Handle, Message, Queue, Record, Stream, Transaction, connect
    from trunkline.api.filters import Channel, Content, Topic, Type
    from trunkline.api.message import MessageId
    from trunkline.api.retry import Retry
    from trunkline.app import Broker, run

_HOMES = {
    "trunkline.app": ("Broker", "run"),
    "trunkline.api.errors": (
        "BodyRefused", "ConnectionLost", "LeaseLost", "NoRoute", "QueueFull", "Refused", "RequestFailed", "Timeout",
        "TrunklineError",
    ),
    "trunkline.api.faces": (
        "Connection", "Handle", "Message", "Queue", "Record", "Stream", "Transaction", "connect",
    ),
    "trunkline.api.filters": ("Channel", "Content", "Topic", "Type"),
    "trunkline.api.message": ("MessageId",),
    "trunkline.api.retry": ("Retry",),
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    # Imported on first use: `import trunkline` alone, as the command line does for --help, stays cheap.
    if name == "aio":
        return import_module("trunkline.aio")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
