"""A dealing room: ticks are published once, and each dealer hears those that his own expression is true for.

python examples/collaboration/dealing_room.py                            in one process
python examples/collaboration/dealing_room.py trunkline://127.0.0.1      over a running broker
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import trunkline
from trunkline import Content, Topic


@dataclass
class Tick:
    company: str
    price: float
    volume: int


@dataclass
class Dealer:
    name: str
    wants: str
    heard: list[Tick] = field(default_factory=list)

    def listen(self, t: trunkline.Connection) -> None:
        t.subscribe(Content(self.wants), self.tick)

    def tick(self, tick: Tick) -> None:
        self.heard.append(tick)


def ticks(count: int) -> Iterator[Tick]:
    chance = random.Random(7)
    for _ in range(count):
        yield Tick(
            chance.choice(["Telco", "Steel", "Bank"]), round(chance.uniform(50, 150), 2), chance.randrange(1, 1000)
        )


def run(url: str, count: int = 300) -> tuple[list[Dealer], list[Tick]]:
    dealers = [
        Dealer("bargain hunter", "company = 'Telco' and price < 100"),
        Dealer("whale watcher", "volume >= 900"),
        Dealer("banker", "company = 'Bank' and (price > 140 or price < 60)"),
    ]
    board: list[Tick] = []
    complete = threading.Event()

    def shown(tick: Tick) -> None:
        board.append(tick)
        if len(board) == count:
            complete.set()

    with trunkline.connect(url, timeout=30) as t:
        for dealer in dealers:
            dealer.listen(t)
        t.subscribe(Topic("ticks/#"), shown)  # the board on the wall shows everything
        for tick in ticks(count):
            t.publish(tick, topic=f"ticks/{tick.company.lower()}")
        complete.wait(30)
        wanted = sum(map(len, map(expected, dealers, [board] * len(dealers))))
        deadline = time.monotonic() + 30
        while sum(len(dealer.heard) for dealer in dealers) < wanted and time.monotonic() < deadline:
            time.sleep(0.01)
    return dealers, board


def expected(dealer: Dealer, board: list[Tick]) -> list[Tick]:
    """What a dealer should have heard, worked out without the broker."""
    if dealer.name == "bargain hunter":
        return [tick for tick in board if tick.company == "Telco" and tick.price < 100]
    if dealer.name == "whale watcher":
        return [tick for tick in board if tick.volume >= 900]
    return [tick for tick in board if tick.company == "Bank" and (tick.price > 140 or tick.price < 60)]


def main() -> None:
    dealers, board = run(sys.argv[1] if len(sys.argv) > 1 else "memory:")
    print(f"{len(board)} ticks on the board")
    for dealer in dealers:
        print(f"{dealer.name}: {len(dealer.heard)} where {dealer.wants}")


if __name__ == "__main__":
    main()
