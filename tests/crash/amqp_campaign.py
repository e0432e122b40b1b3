"""The campaign of AMQP clients: publishers, competing consumers, transactions and dead letters, with consumers that are cut
off with messages in hand. What is promised is in `amqp_ledger`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pika

from tests.crash.amqp_clients import AmqpThread, Publisher, Rejecter, Taker, Transactor
from tests.crash.amqp_ledger import AmqpLedger
from tests.crash.kills import Campaign, Kills

SHARED, ORDERED, PROCESSED, REFUSED, BURIED = "shared", "ordered", "processed", "refused", "buried"
TRANSACTED = ("transacted-a", "transacted-b")
FINISH_SECONDS = 120.0
COMPETITORS = 3
QUIET_SECONDS = 0.5


class AmqpCampaign(Campaign):
    def __init__(self, kills: Kills) -> None:
        super().__init__(kills)
        self.ledger = AmqpLedger()
        self._publishers: list[AmqpThread] = []
        self._takers: list[AmqpThread] = []

    @property
    def complaints(self) -> list[str]:
        return self.ledger.complaints

    def begin(self) -> None:
        self._declare()
        self._start_clients()

    def killed(self) -> None:
        # Before another can be connected to: whoever connects from now on does so to that one.
        self.ledger.generation += 1

    def end(self) -> None:
        for client in (*self._publishers, *self._takers):
            client.finish()

    def checked(self) -> Mapping[str, int]:
        queues = self.ledger.queues.values()
        return {
            "confirmed messages": sum(len(queue.confirmed) for queue in queues),
            "acknowledgements": sum(len(queue.settled) for queue in queues),
            "redeliveries": self.ledger.redelivered,
            "AMQP transactions": len(self.ledger.attempts),
            "dead letters": self.ledger.buried,
        }

    def _declare(self) -> None:
        connection = self._connect()
        channel = connection.channel()
        for name in (SHARED, ORDERED, PROCESSED, BURIED, *TRANSACTED):
            channel.queue_declare(name, durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": BURIED}
        channel.queue_declare(REFUSED, durable=True, arguments=arguments)
        connection.close()

    def _start_clients(self) -> None:
        port, ledger, seed = self.server.port_of("amqp"), self.ledger, self.new_seed
        self._publishers = [
            *(Publisher(queue, port, ledger, seed()) for queue in (SHARED, ORDERED, PROCESSED, REFUSED)),
            Transactor(TRANSACTED, port, ledger, seed()),
        ]
        self._takers = [
            *(Taker(f"competitor {n}", SHARED, port, ledger, seed(), alone=False) for n in range(COMPETITORS)),
            Taker("lone consumer", ORDERED, port, ledger, seed(), alone=True),
            Taker("processor", PROCESSED, port, ledger, seed(), alone=True, in_transactions=True),
            Rejecter(REFUSED, port, ledger, seed()),
        ]
        for client in (*self._publishers, *self._takers):
            client.start()

    def stop_sending(self) -> None:
        for publisher in self._publishers:
            publisher.finish()

    def finish(self) -> None:
        """Let publishers end and consumers get what there is."""
        self._end(self._publishers)
        deadline = time.monotonic() + FINISH_SECONDS
        while self._undelivered() and time.monotonic() < deadline and not self.ledger.complaints:
            time.sleep(0.05)
        self._end(self._takers)

    def _undelivered(self) -> bool:
        return any(self.ledger.undelivered(name) for name in (SHARED, ORDERED, PROCESSED))

    def verify(self) -> None:
        for name in (SHARED, ORDERED, PROCESSED):
            for number, redelivered in self._drain(name):
                self.ledger.delivered(name, number, redelivered, self.ledger.generation)
            self.ledger.check_delivered(name)
        self.ledger.check_transactions([number for name in TRANSACTED for number, _ in self._drain(name)])
        left = [number for number, _ in self._drain(REFUSED)]
        self.ledger.check_buried(REFUSED, left, [number for number, _ in self._drain(BURIED)])

    def _end(self, clients: list[AmqpThread]) -> None:
        for client in clients:
            client.finish()
        for client in clients:
            client.join(FINISH_SECONDS)
            if client.is_alive():
                self.ledger.complain(f"{client.name} did not finish")

    def _drain(self, queue: str) -> list[tuple[int, bool]]:
        """Everything in the queue: the number that each body begins with, and whether it is marked redelivered."""
        connection = self._connect()
        channel = connection.channel()
        found: list[tuple[int, bool]] = []
        while channel.queue_declare(queue, passive=True).method.message_count:
            for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=QUIET_SECONDS):
                if method is None:
                    break
                found.append((int(body.split(b"|", 1)[0]), method.redelivered))
            channel.cancel()
        connection.close()
        return found

    def _connect(self) -> Any:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.server.port_of("amqp")))
