"""A campaign for AMQP: publishers, competing consumers and transactions at work, while the broker is killed again and
again and consumers are cut off with messages in hand.

The moments come from one seeded random source, so a seed repeats the schedule; what the clients had in flight at a kill
depends on the machine. What is promised is in `amqp_ledger`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from tests.crash.amqp_clients import AmqpThread, Publisher, Taker, Transactor
from tests.crash.amqp_ledger import AmqpLedger
from tests.crash.campaign import start_and_kill
from tests.crash.ledger import verdict
from tests.integration.server import ServerProcess

SHARED, ORDERED, PROCESSED = "shared", "ordered", "processed"
TRANSACTED = ("transacted-a", "transacted-b")
LIFE_SECONDS = (0.1, 1.5)
RECOVERY_SECONDS = (0.0, 0.5)
KILLED_WHILE_STARTING = 0.15
FINISH_SECONDS = 120.0
COMPETITORS = 3


@dataclass(frozen=True)
class AmqpSummary:
    seed: int
    kills: int
    confirmed: int
    acknowledged: int
    redelivered: int
    transactions: int
    complaints: list[str]

    def __str__(self) -> str:
        checked = (
            f"seed {self.seed}: {self.kills} kills; {self.confirmed} confirmed messages, {self.acknowledged} "
            f"acknowledgements, {self.redelivered} redeliveries, {self.transactions} transactions checked"
        )
        return verdict(checked, self.complaints)


class AmqpCampaign:
    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.ledger = AmqpLedger()
        self.server = ServerProcess(directory)
        self.kills = 0
        self._publishers: list[AmqpThread] = []
        self._takers: list[AmqpThread] = []

    def run(self, cycles: int, on_cycle: Callable[[int], None] = lambda done: None) -> AmqpSummary:
        self.server.start()
        try:
            self._declare()
            self._start_clients()
            for cycle in range(cycles):
                time.sleep(self.random.uniform(*LIFE_SECONDS))
                self._kill_and_restart()
                on_cycle(cycle + 1)
                if self.ledger.complaints:
                    break
            self._finish()
            self._verify_transactions()
        finally:
            for client in (*self._publishers, *self._takers):
                client.finish()
            self.server.close()
        queues = self.ledger.queues.values()
        return AmqpSummary(
            seed=self.seed,
            kills=self.kills,
            confirmed=sum(len(queue.confirmed) for queue in queues),
            acknowledged=sum(len(queue.settled) for queue in queues),
            redelivered=self.ledger.redelivered,
            transactions=len(self.ledger.attempts),
            complaints=self.ledger.complaints,
        )

    def _declare(self) -> None:
        connection = self._connect()
        for name in (SHARED, ORDERED, PROCESSED, *TRANSACTED):
            connection.channel().queue_declare(name, durable=True)
        connection.close()

    def _start_clients(self) -> None:
        port, ledger = self.server.port_of("amqp"), self.ledger

        def seed() -> int:
            return self.random.randrange(1 << 30)

        self._publishers = [
            *(Publisher(queue, port, ledger, seed()) for queue in (SHARED, ORDERED, PROCESSED)),
            Transactor(TRANSACTED, port, ledger, seed()),
        ]
        self._takers = [
            *(Taker(f"competitor {n}", SHARED, port, ledger, seed(), alone=False) for n in range(COMPETITORS)),
            Taker("lone consumer", ORDERED, port, ledger, seed(), alone=True),
            Taker("processor", PROCESSED, port, ledger, seed(), alone=True, in_transactions=True),
        ]
        for client in (*self._publishers, *self._takers):
            client.start()

    def _kill_and_restart(self) -> None:
        self.server.kill()
        self.kills += 1
        while self.random.random() < KILLED_WHILE_STARTING:
            start_and_kill(self.server, self.random.uniform(*RECOVERY_SECONDS))
            self.kills += 1
        # Before it can be connected to: whoever connects from now on does so to the new one.
        self.ledger.generation += 1
        self.server.start()

    def _finish(self) -> None:
        """Let publishers end and consumers get what there is; after one more kill, read whatever is left."""
        self._end(self._publishers)
        deadline = time.monotonic() + FINISH_SECONDS
        names = (SHARED, ORDERED, PROCESSED)
        while any(self.ledger.undelivered(name) for name in names) and time.monotonic() < deadline:
            if self.ledger.complaints:
                return
            time.sleep(0.05)
        self._end(self._takers)
        self._kill_and_restart()
        for name in names:
            for number, redelivered in self._drain(name):
                self.ledger.delivered(name, number, redelivered, self.ledger.generation)
            self.ledger.check_delivered(name)

    def _end(self, clients: list[AmqpThread]) -> None:
        for client in clients:
            client.finish()
        for client in clients:
            client.join(FINISH_SECONDS)
            if client.is_alive():
                self.ledger.complain(f"{client.name} did not finish")

    def _verify_transactions(self) -> None:
        self.ledger.check_transactions([number for name in TRANSACTED for number, _ in self._drain(name)])

    def _drain(self, queue: str) -> list[tuple[int, bool]]:
        """Everything in the queue: the number that each body begins with, and whether it is marked redelivered."""
        connection = self._connect()
        channel = connection.channel()
        found: list[tuple[int, bool]] = []
        while True:
            method, _, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                break
            found.append((int(body.split(b"|", 1)[0]), method.redelivered))
        connection.close()
        return found

    def _connect(self) -> Any:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.server.port_of("amqp")))
