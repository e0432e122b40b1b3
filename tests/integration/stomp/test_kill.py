"""`kill -9`: what has a receipt is there afterwards, and what was acknowledged with one is not."""

from __future__ import annotations

import threading

from tests.integration.stomp.conftest import StompBroker
from tests.integration.stomp.wire import Wire

QUEUE = "/queue/survivors"
LEAST = 500


def send_until_killed(port: int, told: set[int], enough: threading.Event) -> None:
    with Wire(port) as wire:
        wire.connect()
        number = 0
        try:
            while True:
                for _ in range(50):
                    wire.send("SEND", b"%d" % number, destination=QUEUE, persistent="true", receipt=number)
                    number += 1
                for _ in range(50):
                    told.add(int(wire.expect("RECEIPT").headers["receipt-id"]))
                if len(told) >= LEAST:
                    enough.set()
        except OSError:
            return


def test_what_has_a_receipt_survives_kill_9(fresh_stomp: StompBroker) -> None:
    told: set[int] = set()
    enough = threading.Event()
    sender = threading.Thread(target=send_until_killed, args=(fresh_stomp.stomp_port, told, enough))
    sender.start()
    assert enough.wait(60)
    fresh_stomp.kill()
    sender.join(30)
    assert not sender.is_alive()
    fresh_stomp.start()
    with Wire(fresh_stomp.stomp_port) as wire:
        wire.connect()
        wire.send("SUBSCRIBE", id=1, destination=QUEUE, ack="client-individual")
        missing, acknowledged = set(told), set()
        last = -1
        while missing:
            heard = wire.expect("MESSAGE")
            number = int(heard.body)
            assert number > last, "out of order"
            last = number
            missing.discard(number)
            if number < 100:
                wire.send("ACK", id=heard.headers["ack"])
                acknowledged.add(number)
        wire.send("BEGIN", transaction="t")
        wire.send("SEND", b"never", destination=QUEUE, transaction="t")
        wire.send("SUBSCRIBE", id="last", destination="/queue/other", receipt="flushed")
        wire.receipts(["flushed"])
        wire.send("ACK", id=heard.headers["ack"], receipt="stored")
        wire.receipts(["stored"])
        acknowledged.add(last)
    fresh_stomp.kill()
    fresh_stomp.start()
    with Wire(fresh_stomp.stomp_port) as wire:
        wire.connect()
        wire.send("SUBSCRIBE", id=1, destination=QUEUE)
        left = {int(wire.expect("MESSAGE").body) for _ in range(len(told) - len(acknowledged))}
        assert not left & acknowledged
        assert left >= told - acknowledged
