"""Batches that are passed over, because nobody can look into them.

Kafka clients' batches are stored without being looked into. Who works with records (queues, MQTT, compaction) may meet in
the log what no intake has checked, because the topic was a plain one when it was written: a batch whose records do not
parse, or with more of them than anyone should take. Such a batch is passed over as a whole, and what lies before and
behind it is served.

`PassedOver` counts these batches and says so in the broker's log, with the place: a partition's first, and from then on
whenever their number has doubled, so that nobody can fill the log with them. One that is met again is not counted again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trunkline.log.topic import TopicPartition

if TYPE_CHECKING:
    from trunkline.log.batch import BatchHeader  # a client of the store may do without batches, and their codecs

_logger = logging.getLogger(__name__)


class PassedOver:
    def __init__(self) -> None:
        self.batches = 0
        self._partitions: dict[TopicPartition, tuple[int, int]] = {}  # how many, and where the last of them begins

    def note(self, tp: TopicPartition, header: BatchHeader, reason: object) -> None:
        count, last = self._partitions.get(tp, (0, -1))
        if header.base_offset <= last:
            return
        count += 1
        self.batches += 1
        self._partitions[tp] = (count, header.base_offset)
        if count & (count - 1) == 0:
            _logger.error(
                "topic %s, partition %d: the batch at offsets %d to %d cannot be decoded and is passed over%s: %s",
                tp.topic,
                tp.partition,
                header.base_offset,
                header.last_offset,
                "" if count == 1 else f" (as were {count - 1} before it)",
                reason,
            )
