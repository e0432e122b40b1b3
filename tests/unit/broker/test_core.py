"""What the façade allows of the log, whoever asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trunkline.broker.core import BrokerCore
from trunkline.broker.guard import TopicForbidden, TrimForbidden
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import OffsetOutOfRange
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.errors import ErrorCode, code_of


def test_records_are_removed_from_the_front_of_topics_that_delete_and_are_their_clients(tmp_path: Path) -> None:
    async def test() -> None:
        core = BrokerCore(EmbeddedStore(tmp_path))
        await core.start()
        await core.create_topic("events", 1)
        await core.create_topic("table", 1, {"cleanup.policy": "compact"})
        records = build_batch([NewRecord(b"key", b"%d" % number) for number in range(3)])
        for topic in ("events", "table"):
            await core.append(TopicPartition(topic, 0), records)
        with pytest.raises(TrimForbidden) as refusal:
            await core.trim(TopicPartition("table", 0), 1)
        assert code_of(refusal.value) == ErrorCode.POLICY_VIOLATION
        with pytest.raises(TopicForbidden):
            await core.trim(TopicPartition("__topology", 0), 1)
        with pytest.raises(OffsetOutOfRange):
            await core.trim(TopicPartition("events", 0), -2)
        assert await core.trim(TopicPartition("events", 0), 1) == 1
        assert await core.trim(TopicPartition("events", 0), -1) == 3
        assert core.bounds(TopicPartition("table", 0)).log_start_offset == 0
        await core.close()

    asyncio.run(test())
