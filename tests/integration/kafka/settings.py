"""Client settings for tests: quick to reconnect, refresh and rebalance, otherwise each client's defaults.

Session timeouts are the shortest that a Kafka broker allows (`group.min.session.timeout.ms` is 6,000).
"""

from __future__ import annotations

import time
from typing import Any

Settings = dict[str, Any]

SESSION_TIMEOUT_MS = 6000
HEARTBEAT_MS = 300
# A timestamp that a producer may choose: old enough to be told from now, young enough for the default retention to keep.
HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000


def confluent(bootstrap: str, **more: Any) -> Settings:
    """Settings for every librdkafka client; keywords have `_` for `.`."""
    settings: Settings = {
        "bootstrap.servers": bootstrap,
        "topic.metadata.refresh.interval.ms": 1000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 200,
    }
    settings.update({name.replace("_", "."): value for name, value in more.items()})
    return settings


def confluent_producer(bootstrap: str, **more: Any) -> Settings:
    return confluent(bootstrap, **{"linger_ms": 0, **more})


def confluent_consumer(bootstrap: str, group: str, **more: Any) -> Settings:
    """A classic group member that starts at the earliest record and commits when told."""
    defaults: Settings = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_wait_max_ms": 100,
        "fetch_error_backoff_ms": 20,
        "coordinator_query_interval_ms": 200,
    }
    if more.get("group_protocol") != "consumer":
        defaults |= {"session_timeout_ms": SESSION_TIMEOUT_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
    return confluent(bootstrap, **{**defaults, **more})


def aiokafka(bootstrap: str, **more: Any) -> Settings:
    return {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 1000, "retry_backoff_ms": 50, **more}


def aiokafka_consumer(bootstrap: str, group: str | None, **more: Any) -> Settings:
    defaults: Settings = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 100,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
    return aiokafka(bootstrap, **{**defaults, **more})


def kafka_python(bootstrap: str, **more: Any) -> Settings:
    return {
        "bootstrap_servers": bootstrap,
        "metadata_max_age_ms": 1000,
        "retry_backoff_ms": 20,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 200,
        **more,
    }


def kafka_python_consumer(bootstrap: str, group: str | None, **more: Any) -> Settings:
    defaults: Settings = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 100,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "allow_auto_create_topics": False,
    }
    return kafka_python(bootstrap, **{**defaults, **more})
