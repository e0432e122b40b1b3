"""Dead letters: a message that a queue gives up is published again, to the queue's dead-letter exchange.

Its record's headers then say so: its envelope has the new address, and its history one death more (`deaths`).

Copies: the message's own routing key and those in its header CC (and `amqp.bcc`, which receivers do not see) are where it goes,
and those that receivers may know are `routing-keys` in its history; unless the queue sets the key of its dead letters: then
that is the only one, and the message has no copies from there on.

As in RabbitMQ: a second death in the same queue for the same reason raises that entry's count and moves it to the front;
the message loses its own expiry (else it would die again at once); what a client claims of a first death does not count
if it knows of no death; and a cycle in which no client rejected the message is cut: it is dropped when it would come back
to a queue where it died, with no rejection since.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from trunkline.broker.messaging.deaths import DEATHS_HEADER, FIRST_DEATH, LAST_DEATH, add_death, cycle_of, read_deaths
from trunkline.broker.messaging.envelope import (
    BLIND_COPIES_HEADER,
    COPIES_HEADER,
    EXCHANGE_HEADER,
    ROUTING_KEY_HEADER,
    read_copies,
)
from trunkline.cursors.queue.traits import EXPIRATION_HEADER
from trunkline.log.batch import MAX_RECORD_HEADERS
from trunkline.log.records import decode_headers, encode_headers

_MAX_KEPT: Final = MAX_RECORD_HEADERS - 16  # of a message's own headers: its history must fit, too


class DeadLetter(NamedTuple):
    """A message on its way to a dead-letter exchange. `section` is its new header section."""

    routing_keys: tuple[str, ...]
    section: bytes
    died_before_in: frozenset[str]  # queues that it may not come back to, as no client has rejected it since


def bury(section: bytes, queue: str, reason: str, *, routing_key: str | None, exchange: str, now_ms: int) -> DeadLetter:
    """The message's headers after one more death. `routing_key` None keeps the message's own."""
    kept: list[tuple[str, bytes | None]] = []
    found: dict[str, str] = {}
    deaths: list[dict[str, object]] = []
    for name, value in decode_headers(section):
        if name == DEATHS_HEADER:
            deaths = read_deaths(value) or []
        elif name in {EXCHANGE_HEADER, ROUTING_KEY_HEADER, EXPIRATION_HEADER}:
            found[name] = (value or b"").decode("utf-8", "replace")
        elif not name.startswith(LAST_DEATH):
            kept.append((name, value))
    del kept[_MAX_KEPT:]
    own_key = found.get(ROUTING_KEY_HEADER, queue)
    own_exchange = found.get(EXCHANGE_HEADER, "")
    copies: tuple[str, ...] = ()
    blind_copies: tuple[str, ...] = ()
    if EXCHANGE_HEADER in found:  # else its protocol knows no exchanges, and these names mean nothing to it
        copies, blind_copies = read_copies(kept)
        if routing_key is not None:
            kept = [header for header in kept if header[0] not in {COPIES_HEADER, BLIND_COPIES_HEADER}]
    if not deaths:
        kept = [header for header in kept if not header[0].startswith(FIRST_DEATH)]
    known_keys = (own_key, *copies)
    deaths = add_death(deaths, queue, reason, own_exchange, known_keys, found.get(EXPIRATION_HEADER), now_ms)
    first = {name for name, _ in kept}
    died = (("queue", queue), ("reason", reason), ("exchange", own_exchange))
    kept += [(FIRST_DEATH + what, text.encode()) for what, text in died if FIRST_DEATH + what not in first]
    kept += [(LAST_DEATH + what, text.encode()) for what, text in died]
    keys = (*known_keys, *blind_copies) if routing_key is None else (routing_key,)
    headers = [
        (EXCHANGE_HEADER, exchange.encode()),
        (ROUTING_KEY_HEADER, keys[0].encode()),
        *kept,
        (DEATHS_HEADER, json.dumps(deaths, separators=(",", ":")).encode()),
    ]
    return DeadLetter(keys, encode_headers(headers), cycle_of(deaths))
