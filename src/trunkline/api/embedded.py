"""A broker in this process, for a connection of its own: no server is needed. It listens on free ports of the loopback
interface, so that what is written against it works against a server, and other connections (`url`) can join."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.api.address import Address, parse_url

if TYPE_CHECKING:
    from trunkline.app import Broker


class EmbeddedBroker:
    def __init__(self, directory: Path | None) -> None:
        from trunkline import app  # whoever connects to a server does without

        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        store = app.memory_store if directory is None else None
        self._running: AbstractContextManager[Broker] = app.run(
            directory, mqtt_port=None, mqtt_ws_port=None, store=store
        )
        broker = self._running.__enter__()
        self.url = f"trunkline://{broker.address('amqp')}/?kafka={broker.address('kafka')}"

    @property
    def address(self) -> Address:
        return parse_url(self.url)

    def close(self) -> None:
        self._running.__exit__(None, None, None)
