"""A run: publications of one topic that follow each other and differ in nothing but their payload.

What a client sends in one go is a run, and so is what follows each other in the log; the hub stores it and offers it to
everyone who follows live as a whole, so that most work is done once per run. Publications that are looked at one by one
(who shares a subscription, who has particular wishes) are made of it when they are asked for.

The offsets of a run follow each other. A run of which not all could be stored is split into `parts` first.
"""

from __future__ import annotations

from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.codec import NO_PROPERTIES, encode_run
from trunkline.protocols.mqtt.message import NOT_STORED, Message


class Run:
    """`properties` is the encoded section; `offset` is that of the first, in `partition`. `size_bytes` is for the hub."""

    __slots__ = (
        "_messages",
        "_shared",
        "expires_ms",
        "offset",
        "partition",
        "parts",
        "payloads",
        "properties",
        "publisher",
        "qos",
        "retain",
        "size_bytes",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        payloads: list[bytes],
        qos: int,
        retain: bool = False,
        properties: bytes = NO_PROPERTIES,
        expires_ms: int | None = None,
        publisher: str = "",
        partition: TopicPartition | None = None,
        offset: int = NOT_STORED,
    ) -> None:
        self.topic = topic
        self.payloads = payloads
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_ms = expires_ms
        self.publisher = publisher
        self.partition = partition
        self.offset = offset
        self.size_bytes = 0
        self.parts: list[Run] | None = None
        self._messages: list[Message] | None = None
        self._shared: dict[tuple[int, bool], bytes] | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def messages(self) -> list[Message]:
        """One by one. To be asked for when the offset is known."""
        found = self._messages
        if found is None:
            offset = self.offset
            step = 0 if offset == NOT_STORED else 1
            found = self._messages = [
                Message(
                    self.topic,
                    payload,
                    self.qos,
                    self.retain,
                    self.properties,
                    self.expires_ms,
                    self.publisher,
                    self.partition,
                    offset + index * step,
                )
                for index, payload in enumerate(self.payloads)
            ]
        return found

    def goes_with(self, other: Run, offset: int) -> bool:
        """Whether `other`, if it is stored at `offset`, differs from this one in nothing but its publisher."""
        return (
            other.qos == self.qos
            and (other.offset == offset or self.partition is None)
            and other.properties == self.properties
            and self.expires_ms is None
            and other.expires_ms is None
            and not self.retain
            and not other.retain
            and self.parts is None
            and other.parts is None
        )

    def joined(self, runs: list[Run]) -> Run:
        """All of the runs, which go with this one, as one whose publisher is not known."""
        payloads = [payload for run in runs for payload in run.payloads]
        return Run(self.topic, payloads, self.qos, False, self.properties, None, "", self.partition, self.offset)

    def split(self) -> list[Run]:
        """A run for each publication, none of them stored yet."""
        return [self._slice([payload], NOT_STORED) for payload in self.payloads]

    def first(self, count: int) -> Run:
        """The first `count` of a run that is stored."""
        return self._slice(self.payloads[:count], self.offset)

    def behind(self, count: int) -> Run:
        """What is behind the first `count` of a run that is stored."""
        return self._slice(self.payloads[count:], self.offset + count)

    def _slice(self, payloads: list[bytes], offset: int) -> Run:
        return Run(
            self.topic,
            payloads,
            self.qos,
            self.retain,
            self.properties,
            self.expires_ms,
            self.publisher,
            self.partition,
            offset,
        )

    def shared(self, version: int, retain_as_published: bool) -> bytes:
        """The run at QoS 0 for everyone of this version who wants nothing special."""
        key = (version, retain_as_published)
        if self._shared is None:
            self._shared = {}
        data = self._shared.get(key)
        if data is None:
            retain = self.retain and retain_as_published
            data = self._shared[key] = encode_run(self.topic, self.payloads, 0, retain, [], self.properties, version)
        return data
