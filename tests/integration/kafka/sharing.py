"""Share consumers for tests, and the settings of their groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.integration.kafka import settings
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

ACCEPT, RELEASE, REJECT = 1, 2, 3


def configure(admin: Any, group: str, **values: str | int) -> None:
    """Set settings of a group: `configure(admin, "g", auto_offset_reset="earliest")`."""
    entries = [
        ConfigEntry(f"share.{name.replace('_', '.')}", str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_SECONDS)


def joined(bootstrap: str, group: str, topics: Sequence[str], *, explicit: bool = False, **more: Any) -> Any:
    mode = {"share_acknowledgement_mode": "explicit"} if explicit else {}
    config = settings.confluent(bootstrap, group_id=group, coordinator_query_interval_ms=200, **mode, **more)
    consumer = ShareConsumer(config)
    consumer.subscribe(list(topics))
    return consumer


def poll(consumer: Any, timeout: float = 0.3) -> list[Any]:
    found = list(consumer.poll(timeout))
    for message in found:
        assert message.error() is None, message.error()
    return found


def take(consumer: Any, count: int, each: Callable[[Any], None] | None = None) -> list[Any]:
    """Poll until there are so many messages; each is given to `each` before the next poll, as an explicit consumer must."""
    found: list[Any] = []

    def enough() -> bool:
        for message in poll(consumer):
            found.append(message)
            if each is not None:
                each(message)
        return len(found) >= count

    wait_until(enough, what=f"{count} records")
    return found
