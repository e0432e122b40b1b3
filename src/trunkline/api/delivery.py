"""The five delivery semantics, chosen by one argument of a queue.

| `delivery=` | promise | put | take |
|---|---|---|---|
| at-most-once | may be lost, never twice | sent once | settled before it is handed over |
| at-least-once | never lost, may come twice | stored, sent again until it is | acknowledged when it is done with |
| exactly-once | never lost, never twice | stored once, by id and sequence number | with what is put meanwhile, in a transaction |
| transaction | taken only if the transaction commits | stored | in a transaction |
| timeout | hidden from others until acknowledged or the time is over | stored | leased, 30 s unless said |
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Delivery = Literal["at-most-once", "at-least-once", "exactly-once", "transaction", "timeout"]
DELIVERIES: Final = get_args(Delivery)
DEFAULT_LEASE_S: Final = 30.0
TRANSACTIONAL: Final = ("exactly-once", "transaction")


def checked(delivery: str) -> Delivery:
    if delivery not in DELIVERIES:
        raise ValueError(f"{delivery!r} is no delivery semantics: {', '.join(DELIVERIES)} are")
    return delivery  # type: ignore[return-value]
