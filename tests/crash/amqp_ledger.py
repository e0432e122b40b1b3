"""What AMQP clients were promised, and whether it was kept.

The promises:

- a persistent message whose publication was confirmed is delivered sooner or later, whatever is killed in between;
- one whose acknowledgement has arrived is not delivered again;
- one that a client got and did not acknowledge comes again marked `redelivered`;
- a consumer that is alone gets messages in the order of their publication, also those that come again;
- one that was rejected is among the dead letters, perhaps twice, or still in its queue;
- of a transaction all messages show or none: all when its commit was answered, none when it was never asked for.

An acknowledgement has no answer of its own. It has arrived when a call that follows it on its channel was answered.

Clients run in threads: each method takes the lock. `generation` counts the brokers that were started: a delivery that a
client reads late, out of the buffers of a connection to a broker that is dead, is no broken promise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from tests.crash.ledger import Attempt, Fate

SHOWN_MAX = 5


@dataclass
class QueueLedger:
    """One queue with numbered messages."""

    sent: int = 0
    confirmed: set[int] = field(default_factory=set)
    delivered: Counter[int] = field(default_factory=Counter)
    settled: dict[int, int] = field(default_factory=dict)  # number -> generation of the broker that had its ack


@dataclass
class AmqpLedger:
    queues: dict[str, QueueLedger] = field(default_factory=lambda: defaultdict(QueueLedger))
    attempts: list[Attempt] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    generation: int = 0
    redelivered: int = 0
    buried: int = 0
    lock: Lock = field(default_factory=Lock)

    # -- what clients write down -----------------------------------------------------------------------------------

    def next_number(self, queue: str) -> int:
        with self.lock:
            ledger = self.queues[queue]
            ledger.sent += 1
            return ledger.sent - 1

    def confirmed(self, queue: str, numbers: Iterable[int]) -> None:
        with self.lock:
            self.queues[queue].confirmed.update(numbers)

    def delivered(self, queue: str, number: int, redelivered: bool, generation: int) -> None:
        with self.lock:
            ledger = self.queues[queue]
            settled = ledger.settled.get(number)
            if settled is not None and generation >= settled:
                self.complaints.append(f"{queue} delivered {number} again after it was acknowledged")
            if ledger.delivered[number] and not redelivered:
                self.complaints.append(f"{queue} delivered {number} again without saying so")
            ledger.delivered[number] += 1
            self.redelivered += redelivered

    def settled(self, queue: str, numbers: Iterable[int], generation: int) -> None:
        with self.lock:
            self.queues[queue].settled.update(dict.fromkeys(numbers, generation))

    def attempt_begun(self, size: int) -> int:
        with self.lock:
            self.attempts.append(Attempt(size))
            return len(self.attempts) - 1

    def attempt_is(self, number: int, fate: Fate) -> None:
        with self.lock:
            self.attempts[number].fate = fate

    def complain(self, text: str) -> None:
        with self.lock:
            self.complaints.append(text)

    # -- what must be true -----------------------------------------------------------------------------------------

    def undelivered(self, queue: str) -> list[int]:
        """Confirmed messages that nobody has got so far."""
        with self.lock:
            ledger = self.queues[queue]
            return sorted(number for number in ledger.confirmed if not ledger.delivered[number])

    def backlog(self, queue: str) -> int:
        """How many more were confirmed than delivered."""
        ledger = self.queues[queue]
        return len(ledger.confirmed) - len(ledger.delivered)

    def check_delivered(self, queue: str) -> None:
        lost = self.undelivered(queue)
        if lost:
            self.complain(f"{len(lost)} confirmed messages of {queue} are lost, e.g. {lost[:SHOWN_MAX]}")

    def check_buried(self, queue: str, left: Iterable[int], buried: Iterable[int]) -> None:
        """Every message of a queue whose consumers reject all is in one of these two places."""
        letters = set(buried)
        self.buried = len(letters)
        lost = sorted(self.queues[queue].confirmed - letters - set(left))
        if lost:
            self.complain(f"{len(lost)} rejected messages of {queue} are lost, e.g. {lost[:SHOWN_MAX]}")

    def check_transactions(self, seen: Iterable[int]) -> None:
        """`seen` holds the number of its attempt for each message of a transaction that was found."""
        found = Counter(seen)
        for number, attempt in enumerate(self.attempts):
            allowed = {
                Fate.OPEN: {0},
                Fate.ABORTED: {0},
                Fate.COMMITTED: {attempt.size},
                Fate.ENDING: {0, attempt.size},
            }[attempt.fate]
            if found[number] not in allowed:
                self.complain(
                    f"transaction {number} is {attempt.fate.value}, but {found[number]} of its {attempt.size} messages show"
                )
