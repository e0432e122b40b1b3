"""A stream: the records of a topic, in the order of each of its partitions, kept when they were read.

Members of a group share the partitions; where one of them stops, another goes on from the last `commit`. Without a group a
reader has all partitions and starts where it says. Streams are Kafka's topics: what others write there by Kafka's protocol is read
here, and the other way round.

The Kafka client is a synchronous one, so each stream has two threads: one fetches ahead and keeps the membership alive whatever the
application does, the other appends and commits. When the broker is away both try again; the group resumes from its commits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from trunkline.api import bodies
from trunkline.api.errors import ConnectionLost, Refused, Timeout, TrunklineError
from trunkline.client.client import Client
from trunkline.client.errors import CONNECTION_FAILED, TIMED_OUT, ClientError
from trunkline.client.groups import Groups
from trunkline.client.member import Member
from trunkline.client.producer import Producer
from trunkline.client.reader import Reader, ReadRecord
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition

T = TypeVar("T")
R = TypeVar("R")

CONTENT_TYPE_HEADER = "amqp.content-type"
TYPE_HEADER = "amqp.type"
_OURS = (CONTENT_TYPE_HEADER, TYPE_HEADER)
_AHEAD = 2_000  # records that wait to be asked for
_POLL_MS = 250
_PAUSE_S = 0.2

Start = str | datetime


class Record(Generic[T]):
    """`offset` is its place in its partition; `timestamp` is in seconds, as `time.time()`."""

    __slots__ = ("_commit", "_into", "_read")

    def __init__(self, read: ReadRecord, commit: Callable[[TopicPartition, int], Any], into: object) -> None:
        self._read = read
        self._commit = commit
        self._into = into

    def __repr__(self) -> str:
        return f"Record({self.topic!r}, partition {self.partition}, offset {self.offset})"

    @property
    def topic(self) -> str:
        return self._read.partition.topic

    @property
    def partition(self) -> int:
        return self._read.partition.partition

    @property
    def offset(self) -> int:
        return self._read.record.offset

    @property
    def timestamp(self) -> float:
        return self._read.record.timestamp_ms / 1000

    @property
    def key(self) -> str | None:
        key = self._read.record.key
        return None if key is None else bytes(key).decode("utf-8", "replace")

    @property
    def body(self) -> bytes:
        return bytes(self._read.record.value or b"")

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        return {name: value for name, value in self._read.record.headers if name not in _OURS}

    @property
    def value(self) -> T:
        """BodyRefused if the body is not of the type that was asked for."""
        kind = dict(self._read.record.headers).get(CONTENT_TYPE_HEADER)
        return cast("T", bodies.decode(self.body, None if kind is None else bytes(kind).decode(), self._into))

    async def commit(self) -> None:
        """This record and those before it in its partition are done with: the group goes on behind it."""
        await self._commit(self._read.partition, self.offset + 1)


class Stream(Generic[T]):
    def __init__(self, bootstrap: str, topic: str, group: str | None, start: Start, of: object, timeout: float) -> None:
        self.topic = topic
        self.group = group
        self._start = start
        self._of = of
        self._timeout = timeout
        timeout_ms = round(timeout * 1000)
        self._reading = Client(bootstrap, timeout_ms=timeout_ms, known_to_run=True)
        self._writing = Client(bootstrap, timeout_ms=timeout_ms, known_to_run=True)
        self._reader_thread = ThreadPoolExecutor(1, f"trunkline-read-{topic}")
        self._writer_thread = ThreadPoolExecutor(1, f"trunkline-write-{topic}")
        self._member: Member | None = None
        self._reader: Reader | None = None
        self._next_offsets: Mapping[TopicPartition, int] = {}
        self._producer: Producer | None = None
        self._buffer: deque[ReadRecord] = deque()
        self._arrived = asyncio.Event()
        self._wanted = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._failed: TrunklineError | None = None
        self._closed = False

    # -- reading -------------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None, *, most: int = 1) -> list[Record[T]]:
        """The next records, at least one. Timeout if none comes; None waits for as long as it takes."""
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        try:
            async with asyncio.timeout(timeout):
                while not self._buffer:
                    if self._failed is not None:
                        raise self._failed
                    if self._closed:
                        raise ConnectionLost("the stream is closed")
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise Timeout("no record came in time") from None
        found = [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]
        if len(self._buffer) < _AHEAD // 2:
            self._wanted.set()
        return [Record(each, self._commit, self._of) for each in found]

    async def __aiter__(self) -> AsyncIterator[Record[T]]:
        while not self._closed:
            for record in await self.next(most=1):
                yield record

    async def _fetch(self) -> None:
        """Fetch ahead until the stream is closed. A broker that is away is waited for."""
        loop = asyncio.get_running_loop()
        while not self._closed:
            try:
                if len(self._buffer) >= _AHEAD:
                    await self._wait_for_room(loop)
                    continue
                found = await loop.run_in_executor(self._reader_thread, self._poll)
            except ClientError as error:
                if error.retriable or error.name in (CONNECTION_FAILED, TIMED_OUT):
                    self._reader = None
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._failed = Refused(error.name, str(error))
                self._arrived.set()
                return
            if found:
                self._buffer.extend(found)
                self._arrived.set()

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wanted.clear()
        try:
            async with asyncio.timeout(1.0):
                await self._wanted.wait()
        except TimeoutError:
            if self._member is not None:
                await loop.run_in_executor(self._reader_thread, self._member.beat)

    def _poll(self) -> list[ReadRecord]:
        """In the reading thread."""
        if self.group is None:
            return self._poll_alone()
        if self._member is None:
            self._reading.topic(self.topic, create=True)
            self._member = Member(self._reading, self.group, [self.topic], start_at=self._start_at(), committed=True)
        return self._member.fetch(_POLL_MS)

    def _poll_alone(self) -> list[ReadRecord]:
        if self._reader is None:
            positions = self._next_offsets or self._first_offsets()
            self._reader = Reader(self._reading, positions, committed=True)
        found = list(self._reader.poll(_POLL_MS))
        self._next_offsets = dict(self._reader.positions)
        return found

    def _first_offsets(self) -> dict[TopicPartition, int]:
        topic = self._reading.topic(self.topic, create=True)
        partitions = [TopicPartition(self.topic, each.index) for each in topic.partitions]
        return Topics(self._reading).offsets_since(partitions, self._start_at())

    def _start_at(self) -> int:
        if isinstance(self._start, datetime):
            return round(self._start.timestamp() * 1000)
        return EARLIEST if self._start == "earliest" else LATEST

    # -- writing -------------------------------------------------------------------------------------------------

    async def append(
        self, value: object, *, key: str | None = None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        """Stored when it returns, once, however often it had to be sent. Records of one key stay in one order."""
        body, content_type, type_name = bodies.encode(value)
        sent = [(CONTENT_TYPE_HEADER, content_type.encode()), *dict(headers or {}).items()]
        if type_name is not None:
            sent.append((TYPE_HEADER, type_name.encode()))

        def write() -> None:
            if self._producer is None:
                self._producer = Producer(self._writing, self.topic)
            self._producer.send(None if key is None else key.encode(), body, sent)
            self._producer.flush()

        await self._write(write)

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        member = self._member
        if self.group is None or member is None:
            raise TrunklineError("a stream without a group has nothing to commit to")
        group, member_id = self.group, member.member_id

        def commit() -> None:
            Groups(self._writing).commit(group, {partition: offset}, member_id=member_id, generation=member.epoch)
            member.note_committed(partition, offset)

        await self._write(commit)

    async def _write(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer_thread, work)
        except ClientError as error:
            self._producer = None
            raise explained_kafka(error) from None

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave the group; another member goes on from what was committed."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        self._wanted.set()
        loop = asyncio.get_running_loop()
        if self._fetching is not None:
            await asyncio.gather(self._fetching, return_exceptions=True)
        await loop.run_in_executor(self._reader_thread, self._leave)
        await loop.run_in_executor(self._writer_thread, self._writing.close)
        self._reader_thread.shutdown(wait=False)
        self._writer_thread.shutdown(wait=False)

    def _leave(self) -> None:
        try:
            if self._member is not None:
                self._member.close()
        except ClientError:
            pass  # a broker that is gone finds out by the session timeout
        finally:
            self._reading.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def explained_kafka(error: ClientError) -> TrunklineError:
    if error.name == TIMED_OUT:
        return Timeout(str(error))
    if error.retriable or error.name == CONNECTION_FAILED:
        return ConnectionLost(str(error))
    return Refused(error.name, str(error))
