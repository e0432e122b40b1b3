"""AMQP clients for the crash campaign: they write into the ledger what they were promised, and connect again for ever.

`Publisher` publishes numbered persistent messages with confirms. `Taker` consumes with a prefetch, acknowledges in
ways that vary, and now and then cuts its own connection with messages in hand, as a consumer that is killed.
`Transactor` publishes transactions over two queues, and rolls some back. `Rejecter` makes dead letters of all that it gets.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import Any

import pika
import pika.exceptions

from tests.crash.amqp_ledger import AmqpLedger
from tests.crash.ledger import Fate

PERSISTENT = pika.BasicProperties(delivery_mode=2)
RETRY_SECONDS = 0.05
TICK_SECONDS = 0.005
BURST_MAX = 40
UNCONFIRMED_MAX = 500
BACKLOG_MAX = 3_000  # a publisher waits for consumers that are slower, or they never finish
SOCKET_SECONDS = 5.0
LOST = (pika.exceptions.AMQPError, OSError, EOFError, AssertionError)


class AmqpThread(threading.Thread):
    """A client that works until it is told to finish, over as many connections as that takes."""

    def __init__(self, name: str, port: int, ledger: AmqpLedger, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger = ledger
        self.random = random.Random(seed)
        self.sessions = 0
        self._port = port
        self._finish = threading.Event()

    def finish(self) -> None:
        self._finish.set()

    def run(self) -> None:
        while not self._finish.is_set():
            generation = self.ledger.generation
            try:
                connection = self._connect()
            except (*LOST, ValueError):  # pika's ValueError: the broker went between the connection and its first word
                time.sleep(RETRY_SECONDS)
                continue
            self.sessions += 1
            try:
                self.work(connection, generation)
            except LOST:
                pass
            except Exception as error:
                self.ledger.complain(f"{self.name} failed: {error!r}")
                raise
            finally:
                with contextlib.suppress(*LOST):
                    connection.close()

    @property
    def finishing(self) -> bool:
        return self._finish.is_set()

    def work(self, connection: Any, generation: int) -> None:
        """Work until finished; the connection may fail at any time."""
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def _connect(self) -> Any:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            self._port,
            socket_timeout=SOCKET_SECONDS,
            stack_timeout=SOCKET_SECONDS,
            blocked_connection_timeout=SOCKET_SECONDS,
            heartbeat=2,
        )
        return pika.BlockingConnection(parameters)


def cut(connection: Any) -> None:
    """End the TCP connection without a word."""
    with contextlib.suppress(OSError, AttributeError):
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


class Publisher(AmqpThread):
    def __init__(self, queue: str, port: int, ledger: AmqpLedger, seed: int) -> None:
        super().__init__(f"publisher of {queue}", port, ledger, seed)
        self._queue = queue

    def work(self, connection: Any, generation: int) -> None:
        channel = connection.channel()
        numbers: dict[int, int] = {}  # delivery tag -> number
        tag = 0

        def confirmed(frame: Any) -> None:
            last = frame.method.delivery_tag
            tags = [each for each in numbers if each <= last] if frame.method.multiple else [last]
            self.ledger.confirmed(self._queue, [numbers.pop(each) for each in tags])

        channel._impl.add_callback(confirmed, [pika.spec.Basic.Ack], one_shot=False)
        channel._impl._send_method(pika.spec.Confirm.Select())
        while not self.finishing:
            for _ in range(self.random.randint(1, BURST_MAX)):
                number = self.ledger.next_number(self._queue)
                tag += 1
                numbers[tag] = number
                padding = b"x" * self.random.choice((0, 10, 100, 1000))
                channel.basic_publish("", self._queue, b"%d|%s" % (number, padding), PERSISTENT)
            connection.process_data_events(TICK_SECONDS)
            while not self.finishing and (
                len(numbers) > UNCONFIRMED_MAX or self.ledger.backlog(self._queue) > BACKLOG_MAX
            ):
                connection.process_data_events(TICK_SECONDS)
        deadline = time.monotonic() + SOCKET_SECONDS
        while numbers and time.monotonic() < deadline:
            connection.process_data_events(TICK_SECONDS)


class Taker(AmqpThread):
    """A consumer. `alone` says that no other consumes the queue: then the order is checked as well."""

    def __init__(
        self,
        name: str,
        queue: str,
        port: int,
        ledger: AmqpLedger,
        seed: int,
        *,
        alone: bool,
        in_transactions: bool = False,
    ) -> None:
        super().__init__(name, port, ledger, seed)
        self._queue = queue
        self._alone = alone
        self._in_transactions = in_transactions

    def work(self, connection: Any, generation: int) -> None:
        channel = connection.channel()
        if self._in_transactions:
            channel.tx_select()
        channel.basic_qos(prefetch_count=self.random.randint(2, 60))
        unacked: dict[int, int] = {}  # delivery tag -> number
        last = -1

        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            nonlocal last
            number = int(body.split(b"|", 1)[0])
            self.ledger.delivered(self._queue, number, method.redelivered, generation)
            if self._alone and number <= last:
                self.ledger.complain(f"{self._queue} delivered {number} after {last} on one connection")
            last = number
            unacked[method.delivery_tag] = number

        channel.basic_consume(self._queue, take)
        lifetime = self.random.randint(5, 60)
        for _ in range(lifetime):
            connection.process_data_events(TICK_SECONDS)
            if unacked:
                self._acknowledge(channel, unacked, generation)
            if self.finishing:
                return
        if self.random.random() < 0.7:
            connection.process_data_events(TICK_SECONDS)
            cut(connection)

    def _acknowledge(self, channel: Any, unacked: dict[int, int], generation: int) -> None:
        """Some of what is in hand; written down once a later call is answered."""
        if self.random.random() < 0.5:
            last = self.random.choice(list(unacked))
            done = [tag for tag in unacked if tag <= last]
            channel.basic_ack(last, multiple=True)
        else:
            done = self.random.sample(list(unacked), self.random.randint(1, len(unacked)))
            for tag in done:
                channel.basic_ack(tag)
        numbers = [unacked.pop(tag) for tag in done]
        if self._in_transactions:
            channel.tx_commit()
        else:
            channel.queue_declare(self._queue, passive=True)
        self.ledger.settled(self._queue, numbers, generation)


class Transactor(AmqpThread):
    def __init__(self, queues: tuple[str, str], port: int, ledger: AmqpLedger, seed: int) -> None:
        super().__init__("transactor", port, ledger, seed)
        self._queues = queues

    def work(self, connection: Any, generation: int) -> None:
        channel = connection.channel()
        channel.tx_select()
        while not self.finishing:
            size = self.random.randint(2, 20)
            attempt = self.ledger.attempt_begun(size)
            for index in range(size):
                body = b"%d|%d" % (attempt, index)
                channel.basic_publish("", self._queues[index % 2], body, PERSISTENT)
            if self.random.random() < 0.2:
                channel.tx_rollback()
                self.ledger.attempt_is(attempt, Fate.ABORTED)
                continue
            self.ledger.attempt_is(attempt, Fate.ENDING)
            channel.tx_commit()
            self.ledger.attempt_is(attempt, Fate.COMMITTED)


class Rejecter(AmqpThread):
    """A consumer that rejects everything, one by one or many at once."""

    def __init__(self, queue: str, port: int, ledger: AmqpLedger, seed: int) -> None:
        super().__init__("rejecter", port, ledger, seed)
        self._queue = queue

    def work(self, connection: Any, generation: int) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self.random.randint(5, 60))
        unsettled: list[int] = []

        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            self.ledger.delivered(self._queue, int(body.split(b"|", 1)[0]), method.redelivered, generation)
            unsettled.append(method.delivery_tag)

        channel.basic_consume(self._queue, take)
        while not self.finishing:
            connection.process_data_events(TICK_SECONDS)
            if unsettled and self.random.random() < 0.5:
                channel.basic_nack(unsettled[-1], multiple=True, requeue=False)
            else:
                for tag in unsettled:
                    channel.basic_reject(tag, requeue=False)
            unsettled.clear()
