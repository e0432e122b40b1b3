"""STOMP frame by frame, in the three versions: what each does, and what is told of the wrong ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pytest

from tests.integration.amqp.definitions import LIMITED, NEIGHBOUR, OTHER_VHOST
from tests.integration.stomp.conftest import Dial, StompBroker
from tests.integration.stomp.wire import Wire

every_version = pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])


def ack_of(version: str, heard: dict[str, str]) -> dict[str, object]:
    """The headers of an ACK or NACK of this message."""
    if version == "1.2":
        return {"id": heard["ack"]}
    return {"message_id": heard["message-id"], "subscription": heard["subscription"]}


# -- connecting --------------------------------------------------------------------------------------------------------


def test_the_highest_common_version_is_spoken(stomp: StompBroker) -> None:
    for asked, spoken in (("1.0,1.1,1.2", "1.2"), ("1.1", "1.1"), ("1.0", "1.0"), ("1.1,9.9", "1.1")):
        with Wire(stomp.stomp_port) as wire:
            answer = wire.connect(asked)
            assert answer.command == "CONNECTED"
            assert answer.headers["version"] == spoken
            assert answer.headers["session"]
            assert answer.headers["server"]


def test_without_accept_version_it_is_1_0_and_without_login_the_guest(stomp: StompBroker) -> None:
    with Wire(stomp.stomp_port) as wire:
        wire.say(b"CONNECT\n\n\0")
        assert wire.expect("CONNECTED").headers["version"] == "1.0"


@pytest.mark.ours_only("RabbitMQ leaves the connection open after these errors")
@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"CONNECT\naccept-version:2.0\nhost:/\n\n\0", "Version mismatch"),
        (b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:wrong\n\n\0", "Bad CONNECT"),
        (b"CONNECT\naccept-version:1.2\nhost:nowhere\nlogin:guest\npasscode:guest\n\n\0", "Bad CONNECT"),
        (b"CONNECT\naccept-version:1.2\nhost:/\nheart-beat:often\n\n\0", "Invalid header"),
        (b"SEND\ndestination:/queue/a\n\n\0", "Illegal command"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n\0", "Illegal command"),
        (b"\x16\x03\x01" * 20, "Malformed frame"),
    ],
)
def test_who_is_not_let_in_is_told_why(dial: Dial, frame: bytes, message: str) -> None:
    wire = dial(None)
    wire.say(frame)
    assert wire.error().headers["message"] == message


def test_a_virtual_host_is_a_name_space_of_its_own(dial: Dial, queue: str) -> None:
    here, there = dial(), dial(host=OTHER_VHOST, login=NEIGHBOUR[0], passcode=NEIGHBOUR[1])
    here.ask("SEND", b"here", destination=queue)
    there.ask("SUBSCRIBE", id=1, destination=queue)
    here.send("SUBSCRIBE", id=1, destination=queue)
    assert here.expect("MESSAGE").body == b"here"
    assert there.silent()


@every_version
def test_heart_beats_come_and_are_missed(dial: Dial, version: str) -> None:
    wire = dial(version, heart_beat="500,500")
    before = wire.bytes_read
    deadline = time.monotonic() + 20
    while wire.bytes_read - before < 2:
        assert time.monotonic() < deadline
        wire.say(b"\n")  # ours, or the connection ends
        wire.silent(0.3)
    while time.monotonic() < deadline:
        try:
            wire.silent(0.3)
        except ConnectionError:
            return
    raise AssertionError("who sends no heart-beats is not cut off")


# -- sending and receiving ---------------------------------------------------------------------------------------------


@every_version
def test_what_is_sent_is_received_with_its_headers(dial: Dial, queue: str, version: str) -> None:
    wire = dial(version)
    sent = {"content_type": "text/plain", "correlation_id": "c", "priority": "3", "persistent": "true", "colour": "red"}
    wire.ask("SEND", b"\0binary\0", destination=queue, content_length=8, **sent)
    wire.send("SUBSCRIBE", id="s 1", destination=queue)
    heard = wire.expect("MESSAGE")
    assert heard.body == b"\0binary\0"
    assert heard.headers["subscription"] == "s 1"
    assert heard.headers["destination"] == queue
    assert heard.headers["redelivered"] == "false"
    assert heard.headers["message-id"]
    for name, value in sent.items():
        assert heard.headers[name.replace("_", "-")] == value


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_headers_are_escaped_both_ways(dial: Dial, queue: str, version: str) -> None:
    wire = dial(version)
    wire.say(rf"SEND{chr(10)}destination:{queue}{chr(10)}a\cb:c\nd\\e".encode() + b"\n\nx\0")
    wire.send("SUBSCRIBE", id=1, destination=queue)
    assert wire.expect("MESSAGE").headers["a:b"] == "c\nd\\e"


def test_frames_may_come_all_at_once_and_take_effect_in_order(dial: Dial, queue: str) -> None:
    wire = dial(None)
    frames = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0\n\n"
    frames += f"SUBSCRIBE\nid:1\ndestination:{queue}\n\n\0".encode()
    frames += b"".join(f"SEND\ndestination:{queue}\n\n{number}\0\n".encode() for number in range(100))
    frames += b"DISCONNECT\nreceipt:bye\n\n\0"
    wire.say(frames)
    wire.expect("CONNECTED")
    bodies = []
    while (heard := wire.hear()).command == "MESSAGE":
        bodies.append(int(heard.body))
    assert bodies == list(range(len(bodies)))
    assert heard.headers == {"receipt-id": "bye"}
    wire.assert_closed()


def test_a_large_message_comes_back_whole(dial: Dial, queue: str) -> None:
    wire = dial()
    body = bytes(range(256)) * (4 << 12)
    wire.ask("SEND", body, destination=queue, content_length=len(body))
    wire.send("SUBSCRIBE", id=1, destination=queue)
    assert wire.expect("MESSAGE").body == body


def test_a_destination_without_a_slash_is_a_queue(dial: Dial, unique: Callable[[str], str]) -> None:
    wire, name = dial(), unique("plain")
    wire.send("SEND", b"x", destination=name)
    wire.send("SUBSCRIBE", id=1, destination=f"/queue/{name}")
    assert wire.expect("MESSAGE").headers["destination"] == f"/queue/{name}"


def test_an_expired_message_does_not_come(dial: Dial, queue: str) -> None:
    wire = dial()
    wire.ask("SEND", b"late", destination=queue, expiration=1)
    time.sleep(0.05)
    wire.ask("SEND", b"kept", destination=queue)
    wire.send("SUBSCRIBE", id=1, destination=queue)
    assert wire.expect("MESSAGE").body == b"kept"


# -- acknowledging -----------------------------------------------------------------------------------------------------


@every_version
def test_in_client_mode_an_ack_is_for_all_before_it(dial: Dial, queue: str, version: str) -> None:
    wire = dial(version)
    wire.send("SUBSCRIBE", id=1, destination=queue, ack="client", prefetch_count=3)
    for number in range(5):
        wire.send("SEND", b"%d" % number, destination=queue)
    held = wire.messages(3)
    assert wire.silent()
    wire.send("ACK", **ack_of(version, held[2].headers))
    assert [heard.body for heard in wire.messages(2)] == [b"3", b"4"]
    wire.close()
    again = dial()
    again.send("SUBSCRIBE", id=1, destination=queue)
    came_back = again.messages(2)
    assert [(heard.body, heard.headers["redelivered"]) for heard in came_back] == [(b"3", "true"), (b"4", "true")]


@every_version
def test_in_client_individual_mode_each_is_acknowledged_by_itself(dial: Dial, queue: str, version: str) -> None:
    wire = dial(version)
    wire.send("SUBSCRIBE", id=1, destination=queue, ack="client-individual")
    for number in range(3):
        wire.send("SEND", b"%d" % number, destination=queue)
    held = wire.messages(3)
    wire.ask("ACK", **ack_of(version, held[1].headers))
    wire.close()
    again = dial()
    again.send("SUBSCRIBE", id=1, destination=queue)
    assert [heard.body for heard in again.messages(2)] == [b"0", b"2"]


def test_nack_puts_back_or_gives_up(dial: Dial, queue: str, unique: Callable[[str], str]) -> None:
    wire, dead = dial(), unique("dead")
    options = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    wire.send("SUBSCRIBE", id="dead", destination=f"/queue/{dead}")
    wire.send("SUBSCRIBE", id=1, destination=queue, ack="client-individual", **options)
    wire.send("SEND", b"x", destination=queue)
    first = wire.expect("MESSAGE")
    wire.send("NACK", id=first.headers["ack"])
    second = wire.expect("MESSAGE")
    assert (second.headers["redelivered"], second.headers["subscription"]) == ("true", "1")
    wire.send("NACK", id=second.headers["ack"], requeue="false")
    assert wire.expect("MESSAGE").headers["subscription"] == "dead"


@pytest.mark.ours_only("RabbitMQ keeps what an ended subscription holds until its connection goes")
def test_what_an_ended_subscription_holds_goes_back(dial: Dial, queue: str) -> None:
    wire = dial()
    wire.send("SUBSCRIBE", id=1, destination=queue, ack="client")
    wire.send("SEND", b"x", destination=queue)
    wire.expect("MESSAGE")
    wire.ask("UNSUBSCRIBE", id=1)
    wire.send("SUBSCRIBE", id=2, destination=queue)
    heard = wire.expect("MESSAGE")
    assert (heard.headers["subscription"], heard.headers["redelivered"]) == ("2", "true")


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_all_or_nothing(dial: Dial, queue: str) -> None:
    wire, reader = dial(), dial()
    reader.ask("SUBSCRIBE", id=1, destination=queue)
    wire.ask("BEGIN", transaction="one")
    wire.ask("BEGIN", transaction="two")
    for number in range(3):
        wire.send("SEND", b"%d" % number, destination=queue, transaction="one")
    wire.send("SEND", b"never", destination=queue, transaction="two")
    assert reader.silent()
    wire.ask("ABORT", transaction="two")
    wire.ask("COMMIT", transaction="one")
    assert [heard.body for heard in reader.messages(3)] == [b"0", b"1", b"2"]
    assert reader.silent()


@pytest.mark.ours_only(
    "RabbitMQ's plugin leaves aborted acknowledgements unacknowledged, but gives no way to settle them again"
)
def test_an_ack_within_a_transaction_counts_when_it_commits(dial: Dial, queue: str) -> None:
    wire = dial()
    wire.send("SUBSCRIBE", id=1, destination=queue, ack="client-individual")
    for number in range(2):
        wire.send("SEND", b"%d" % number, destination=queue)
    first, second = wire.messages(2)
    wire.ask("BEGIN", transaction="t")
    wire.send("ACK", id=first.headers["ack"], transaction="t")
    wire.ask("ABORT", transaction="t")
    wire.ask("BEGIN", transaction="t")
    wire.send("ACK", id=first.headers["ack"], transaction="t")
    wire.ask("COMMIT", transaction="t")
    wire.close()
    again = dial()
    again.send("SUBSCRIBE", id=1, destination=queue)
    assert again.expect("MESSAGE").body == second.body == b"1"
    assert again.silent()


# -- destinations ------------------------------------------------------------------------------------------------------


def test_a_topic_is_told_to_everyone_who_listens(dial: Dial, unique: Callable[[str], str]) -> None:
    root = unique("news")
    wires = [dial() for _ in range(2)]
    for wire in wires:
        wire.ask("SUBSCRIBE", id=1, destination=f"/topic/{root}.*")
    wires[0].send("SEND", b"x", destination=f"/topic/{root}.sport")
    for wire in wires:
        assert wire.expect("MESSAGE").headers["destination"] == f"/topic/{root}.sport"
    wires[0].ask("UNSUBSCRIBE", id=1)
    wires[0].send("SEND", b"y", destination=f"/topic/{root}.sport")
    assert wires[1].expect("MESSAGE").body == b"y"
    assert wires[0].silent()


def test_a_durable_subscription_gets_what_came_while_it_was_away(dial: Dial, unique: Callable[[str], str]) -> None:
    topic, durable = f"/topic/{unique('news')}", {"durable": "true", "auto_delete": "false"}
    first = dial()
    first.ask("SUBSCRIBE", id="mine", destination=topic, **durable)
    first.ask("DISCONNECT")
    second = dial()
    second.ask("SEND", b"missed", destination=topic)
    second.send("SUBSCRIBE", id="mine", destination=topic, **durable)
    assert second.expect("MESSAGE").body == b"missed"
    second.ask("UNSUBSCRIBE", id="mine", **durable)
    second.ask("SEND", b"gone", destination=topic)
    second.ask("SUBSCRIBE", id="mine", destination=topic, **durable)
    assert second.silent()
    second.ask("UNSUBSCRIBE", id="mine", **durable)


def test_an_exchange_is_a_destination(dial: Dial, unique: Callable[[str], str]) -> None:
    wire, key = dial(), unique("key")
    wire.ask("SUBSCRIBE", id=1, destination=f"/exchange/amq.direct/{key}")
    wire.ask("SUBSCRIBE", id=2, destination="/exchange/amq.fanout")
    wire.send("SEND", b"direct", destination=f"/exchange/amq.direct/{key}")
    assert wire.expect("MESSAGE").headers["subscription"] == "1"
    wire.send("SEND", b"fanout", destination="/exchange/amq.fanout")
    assert wire.expect("MESSAGE").headers["destination"] == "/exchange/amq.fanout"


def test_a_reply_comes_to_a_queue_of_ones_own(dial: Dial, queue: str) -> None:
    client, server = dial(), dial()
    server.ask("SUBSCRIBE", id=1, destination=queue)
    client.send("SEND", b"question", destination=queue, reply_to="/temp-queue/answers", correlation_id=7)
    asked = server.expect("MESSAGE")
    assert asked.headers["reply-to"].startswith("/reply-queue/")
    server.send("SEND", b"answer", destination=asked.headers["reply-to"], correlation_id=7)
    answer = client.expect("MESSAGE")
    assert (answer.body, answer.headers["subscription"]) == (b"answer", "/temp-queue/answers")
    assert answer.headers["correlation-id"] == "7"


@pytest.mark.ours_only("RabbitMQ has no selectors")
def test_a_selector_picks_messages(dial: Dial, queue: str) -> None:
    wire = dial()
    for price in (5, 50, 7):
        wire.send("SEND", b'{"price": %d}' % price, destination=queue, colour="red")
    wire.send("SUBSCRIBE", id=1, destination=queue, selector="colour = 'red' and price < 10")
    assert [heard.body for heard in wire.messages(2)] == [b'{"price": 5}', b'{"price": 7}']
    assert wire.silent()


def test_a_queue_is_declared_by_headers(dial: Dial, queue: str) -> None:
    wire = dial()
    wire.ask("SUBSCRIBE", id=1, destination=queue, **{"x-max-length": "2"})
    wire.ask("UNSUBSCRIBE", id=1)
    for number in range(4):
        wire.ask("SEND", b"%d" % number, destination=f"/amq{queue}")
    wire.send("SUBSCRIBE", id=2, destination=f"/amq{queue}")
    assert [heard.body for heard in wire.messages(2)] == [b"2", b"3"]


@pytest.mark.ours_only("the plugin of RabbitMQ 3.10 does not read offsets")
def test_a_stream_is_read_from_any_place(dial: Dial, queue: str) -> None:
    wire = dial()
    options = {"ack": "client", "prefetch_count": 10}
    wire.ask("SUBSCRIBE", id=0, destination=queue, **options, **{"x-queue-type": "stream"})
    wire.ask("UNSUBSCRIBE", id=0)
    for number in range(5):
        wire.ask("SEND", b"%d" % number, destination=queue)
    wire.close()
    for place, expected in (("first", range(5)), ("offset=3", range(3, 5)), ("last", range(4, 5)), ("1h", range(5))):
        again = dial()
        again.send("SUBSCRIBE", id=1, destination=queue, **options, **{"x-stream-offset": place})
        heard = again.messages(len(expected))
        assert [int(each.body) for each in heard] == list(expected)
        assert [int(each.headers["x-stream-offset"]) for each in heard] == list(expected)
        again.send("ACK", id=heard[-1].headers["ack"])
        again.close()


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.ours_only("RabbitMQ leaves the connection open after some errors, and tells no receipt-id")
@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("SEND\nreceipt:r\n\n", "Missing destination"),
        ("SEND\nreceipt:r\ndestination:/nowhere/x\n\n", "Unknown destination"),
        ("SEND\nreceipt:r\ndestination:/queue/a/b\n\n", "Invalid destination"),
        ("SEND\nreceipt:r\ndestination:/queue/a\nmessage-id:m\n\n", "Invalid header"),
        ("SEND\nreceipt:r\ndestination:/queue/a\npriority:high\n\n", "Invalid header"),
        ("SEND\nreceipt:r\ndestination:/queue/a\nuser-id:somebody\n\n", "precondition_failed"),
        ("SEND\nreceipt:r\ndestination:/exchange/none/k\n\n", "not_found"),
        ("SEND\nreceipt:r\ndestination:/queue/a\ntransaction:t\n\n", "Bad transaction"),
        ("SUBSCRIBE\nreceipt:r\nid:1\n\n", "Missing destination"),
        ("SUBSCRIBE\nreceipt:r\nid:1\ndestination:/amq/queue/none\n\n", "not_found"),
        ("SUBSCRIBE\nreceipt:r\nid:1\ndestination:/exchange/none\n\n", "not_found"),
        ("SUBSCRIBE\nreceipt:r\nid:1\ndestination:/queue/a\nack:maybe\n\n", "Invalid header"),
        ("SUBSCRIBE\nreceipt:r\nid:1\ndestination:/queue/a\nselector:=\n\n", "precondition_failed"),
        ("SUBSCRIBE\nreceipt:r\nid:1\ndestination:/temp-queue/a\n\n", "Invalid destination"),
        ("UNSUBSCRIBE\nreceipt:r\nid:1\n\n", "No subscription found"),
        ("ACK\nreceipt:r\nid:none\n\n", "Invalid header"),
        ("ACK\nreceipt:r\nid:T_1@@session@@1\n\n", "Subscription not found"),
        ("COMMIT\nreceipt:r\ntransaction:t\n\n", "Bad transaction"),
        ("BEGIN\nreceipt:r\n\n", "Missing transaction"),
        ("CONNECT\nreceipt:r\n\n", "Illegal command"),
        ("WHATEVER\nreceipt:r\n\n", "Bad command"),
    ],
)
def test_an_error_names_the_receipt_and_ends_the_connection(dial: Dial, frame: str, message: str) -> None:
    wire = dial()
    wire.say(frame.encode() + b"\0")
    wire.send("SEND", b"too late", destination="/queue/never")
    heard = wire.error()
    assert heard.headers["message"] == message
    assert heard.headers["receipt-id"] == "r"
    assert heard.body


@pytest.mark.ours_only("RabbitMQ closes without a word")
@pytest.mark.parametrize(
    "frame",
    [
        b"SEND\ndestination:/queue/a\nreceipt:\\q\n\n\0",
        b"SEND\ndestination:/queue/a\nnothing\n\n\0",
        b"SEND\ndestination:/queue/\xff\n\n\0",
        b"SEND\ndestination:/queue/a\ncontent-length:1\n\nxyz\0",
        b"SEND\ndestination:/queue/a\ncontent-length:999999999999\n\n",
        b"SEND\n" + b"a:b\n" * 2_000 + b"\n\0",
        b"SEND\n" + b"a" * 300_000,
    ],
)
def test_a_malformed_frame_is_told_and_ends_the_connection(dial: Dial, frame: bytes) -> None:
    wire = dial()
    wire.say(frame)
    assert wire.error().headers["message"] == "Malformed frame"


@pytest.mark.ours_only("RabbitMQ's plugin does not look at the session in a message's id")
def test_an_ack_from_an_earlier_connection_settles_nothing(dial: Dial, queue: str) -> None:
    first = dial()
    first.send("SUBSCRIBE", id=1, destination=queue, ack="client")
    first.send("SEND", b"x", destination=queue)
    stale = first.expect("MESSAGE").headers["ack"]
    first.close()
    second = dial()
    second.send("SUBSCRIBE", id=1, destination=queue, ack="client")
    second.expect("MESSAGE")
    second.send("ACK", id=stale)
    assert second.error().headers["message"] == "Subscription not found"


def test_a_deleted_queue_ends_its_subscription(dial: Dial, stomp: StompBroker, queue: str) -> None:
    wire = dial()
    wire.ask("SUBSCRIBE", id=1, destination=queue)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", stomp.port))
    connection.channel().queue_delete(queue.removeprefix("/queue/"))
    connection.close()
    assert wire.expect("ERROR").headers["message"] == "Server cancelled subscription"


def test_who_may_not_is_told_so(dial: Dial) -> None:
    wire = dial(login=LIMITED[0], passcode=LIMITED[1])
    wire.send("SEND", b"x", destination="/queue/forbidden", receipt="r")
    assert wire.expect("ERROR").headers["message"] == "access_refused"
