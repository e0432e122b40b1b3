"""A retailer orders, a vendor orders the parts from its suppliers, and everybody answers: event collaboration by queues.

    python examples/collaboration/retailer.py                            in one process
    python examples/collaboration/retailer.py trunkline://127.0.0.1      over a running broker

The vendor takes one order and sends many, in one transaction: either the order is taken and every supplier asked, or nothing has
happened and the order comes again. Confirmations are correlated by the order's number, which they carry as a header. When a supplier
fails, its message is tried again; the parts that were asked for before are not asked for twice.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field

import trunkline
from trunkline import Message, Retry, Transaction


@dataclass
class Order:
    number: int
    items: list[str]


@dataclass
class PartOrder:
    order: int
    part: str


@dataclass
class PartConfirmed:
    order: int
    part: str
    supplier: str


@dataclass
class OrderConfirmed:
    number: int
    parts: dict[str, str]


PARTS = {"bicycle": ("frame", "wheels"), "lamp": ("bulb", "shade")}
SUPPLIERS = {"frame": "metalworks", "wheels": "metalworks", "bulb": "glassworks", "shade": "glassworks"}
PATIENCE = Retry(5, backoff=0.05)


@dataclass
class Vendor:
    """Keeps in mind which orders are open. (A real one would keep that in a table, or in a shared map.)"""

    t: trunkline.Connection
    missing: dict[int, set[str]] = field(default_factory=dict)
    had: dict[int, dict[str, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self.t.queue("vendor.orders", delivery="transaction", retry=PATIENCE).notify(self.ordered)
        self.t.queue("vendor.confirmations", delivery="transaction", retry=PATIENCE).notify(
            self.confirmed, concurrency=1
        )

    def ordered(self, order: Order, x: Transaction) -> None:
        """Receive one, send many."""
        wanted = [part for item in order.items for part in PARTS[item]]
        with self.lock:
            self.missing[order.number] = set(wanted)
        for part in wanted:
            x.put(
                f"supplier.{SUPPLIERS[part]}", PartOrder(order.number, part), headers={"correlation": str(order.number)}
            )

    def confirmed(self, confirmation: PartConfirmed, x: Transaction) -> None:
        """Collect replies; the last one makes the order complete."""
        with self.lock:
            had = {**self.had.get(confirmation.order, {}), confirmation.part: confirmation.supplier}
            if self.missing[confirmation.order] <= had.keys():
                x.put("retailer.confirmations", OrderConfirmed(confirmation.order, had))
            self.had[confirmation.order] = had


class Supplier:
    def __init__(self, t: trunkline.Connection, name: str, *, fails_first: bool = False) -> None:
        self.t = t
        self.name = name
        self.fails = fails_first

    def start(self) -> None:
        queue = self.t.queue(f"supplier.{self.name}", delivery="transaction", retry=PATIENCE)
        queue.notify(self.asked, concurrency=1)

    def asked(self, order: PartOrder, x: Transaction) -> None:
        x.put("vendor.confirmations", PartConfirmed(order.order, order.part, self.name))
        if self.fails:
            self.fails = False
            raise RuntimeError("the lorry broke down")  # rolled back: nothing is confirmed, and it is tried again


def run(url: str, orders: list[Order]) -> dict[int, OrderConfirmed]:
    confirmed: dict[int, OrderConfirmed] = {}
    with trunkline.connect(url, timeout=30) as retailer, trunkline.connect(retailer.url, timeout=30) as others:
        Vendor(others).start()
        Supplier(others, "metalworks").start()
        Supplier(others, "glassworks", fails_first=True).start()
        retailer.queue("vendor.orders").put_all(orders)
        confirmations = retailer.queue("retailer.confirmations", OrderConfirmed)
        while len(confirmed) < len(orders):
            message: Message[OrderConfirmed] = confirmations.get(timeout=30)
            assert message.value.number not in confirmed, "an order is confirmed once"
            confirmed[message.value.number] = message.value
            message.ack()
    return confirmed


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "memory:"
    orders = [Order(1, ["bicycle"]), Order(2, ["lamp", "bicycle"]), Order(3, ["lamp"])]
    for number, confirmation in sorted(run(url, orders).items()):
        parts = ", ".join(f"{part} from {supplier}" for part, supplier in sorted(confirmation.parts.items()))
        print(f"order {number}: {parts}")


if __name__ == "__main__":
    main()
