"""Content matching: how many events a second the content index matches, among ten thousand to a million filters.

Filters of mixed kinds, in equal shares, over quotes of 10,000 symbols:

    equality and range    symbol = 'S17' and price < 420.5
    two ranges            price between 400 and 410 and volume > 90000
    a range alone         price between 412.5 and 412.75

A range alone is wide where filters are few and narrow where they are many, so that an event matches about as many filters (ten or
so) at every size: what grows then is the cost of finding them. What is measured is the index of the broker, with events that
are parsed from JSON, in this process, without sockets; in CPU time, so that what else the machine does counts little.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from trunkline.routing.content_index import ContentIndex
from trunkline.routing.fields import Fields
from trunkline.routing.filter import Filter

SIZES: Final = (10_000, 100_000, 1_000_000)
KINDS: Final = ("mixed", "equality and range", "two ranges", "ranges alone")
_SYMBOLS: Final = 10_000
_PRICES: Final = 1_000.0
_VOLUMES: Final = 100_000
_MATCHES: Final = 10.0  # of an event, about
_SEED: Final = 14


class Matching(NamedTuple):
    kind: str
    filters: int
    events_per_s: float
    matches_per_event: float
    add_us: float
    filter_bytes: float


def measure(kind: str, filters: int, *, seconds: float = 2.0) -> Matching:
    chance = random.Random(_SEED)
    gc.collect()
    gc.disable()
    try:
        before_bytes = _resident_bytes()
        index: ContentIndex[int] = ContentIndex()
        texts = list(filter_texts(kind, filters, chance))
        begin = time.process_time()
        for number, text in enumerate(texts):
            index.add(Filter(text), number)
        adding = time.process_time() - begin
        # The texts are the index's keys: they count.
        grown_bytes = _resident_bytes() - before_bytes
        events = list(event_bodies(20_000, chance))
        matches = count = 0
        begin = time.process_time()
        while time.process_time() - begin < seconds:
            for body in events[count % len(events) :][:100]:
                matches += len(index.match(Fields(None, body)))
                count += 1
        elapsed = time.process_time() - begin
    finally:
        gc.enable()
    return Matching(
        kind, filters, count / elapsed, matches / count, adding / filters * 1e6, max(grown_bytes, 0) / filters
    )


def filter_texts(kind: str, count: int, chance: random.Random) -> Iterator[str]:
    kinds = KINDS[1:] if kind == "mixed" else (kind,)
    share = count / len(kinds)
    for number in range(count):
        chosen = kinds[number % len(kinds)]
        if chosen == "equality and range":
            # share / symbols filters a symbol, of which so many match.
            width = _PRICES * min(_MATCHES * _SYMBOLS / share / len(kinds), 1.0) * chance.uniform(0.5, 1.5)
            low = chance.uniform(-width / 2, _PRICES - width / 2)
            yield f"symbol = 'S{chance.randrange(_SYMBOLS)}' and price between {low:.4f} and {low + width:.4f}"
        elif chosen == "two ranges":
            side = (_MATCHES / share / len(kinds)) ** 0.5
            width = _PRICES * side * chance.uniform(0.5, 1.5)
            low = chance.uniform(-width / 2, _PRICES - width / 2)
            depth = int(_VOLUMES * side * chance.uniform(0.5, 1.5)) + 1
            least = chance.randrange(_VOLUMES) - depth // 2
            yield f"price between {low:.4f} and {low + width:.4f} and volume between {least} and {least + depth}"
        else:
            width = _PRICES * _MATCHES / share / len(kinds) * chance.uniform(0.5, 1.5)
            low = chance.uniform(-width / 2, _PRICES - width / 2)
            yield f"price >= {low:.6f} and price < {low + width:.6f}"


def event_bodies(count: int, chance: random.Random) -> Iterator[bytes]:
    for _ in range(count):
        quote = {
            "symbol": f"S{chance.randrange(_SYMBOLS)}",
            "price": round(chance.uniform(0, _PRICES), 4),
            "volume": chance.randrange(_VOLUMES),
        }
        yield json.dumps(quote).encode()


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
