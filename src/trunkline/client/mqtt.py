"""A small synchronous MQTT 5.0 client on our own codec, for the command line. It talks to other brokers just as well.

One connection, used by one thread. `messages` yields what subscriptions bring; whoever took a message says so by
`acknowledge`. QoS 2 is done by the book: a message is yielded when it comes first, and its identifier is remembered until
PUBREL.
A refusal is a `ClientError` with the reason code's meaning.

`manage` asks what MQTT has no packets for: see protocols/mqtt/management. Only Trunkline answers it.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

from trunkline.client.errors import CONNECTION_FAILED, DISCONNECTED, OTHER_PROTOCOL, REFUSED, TIMED_OUT, ClientError
from trunkline.client.login import Tls
from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import MalformedPacket, Parser, Properties, encode
from trunkline.protocols.mqtt.management import PREFIX
from trunkline.protocols.mqtt.packets import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)

DEFAULT_PORT = 1883
DEFAULT_TLS_PORT = 8883
KEEP_ALIVE_S = 60
MAX_PACKET_BYTES = 268_435_455
_READ_BYTES = 256 * 1024
_ASK_EVERY_S = 0.5
_REASONS = {
    value: name.lower().replace("_", " ")
    for name, value in vars(errors).items()
    if name.isupper() and isinstance(value, int) and value >= errors.UNSPECIFIED_ERROR
}

P = TypeVar("P", bound=Packet)


class MqttAddress(NamedTuple):
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    user: str | None = None
    password: str | None = None
    tls: Tls | None = None


def parse_url(url: str) -> MqttAddress:
    """`mqtt://user:password@host:port`, `mqtts://…` for TLS, or `host:port`. ValueError for anything else."""
    parts = urlsplit(url if "://" in url else f"mqtt://{url}")
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or parts.path not in {"", "/"} or parts.port == 0:
        raise ValueError(f"{url!r} is not mqtt://user:password@host:port")
    user = unquote(parts.username) if parts.username else None
    tls = Tls() if parts.scheme == "mqtts" else None
    port = parts.port or (DEFAULT_PORT if tls is None else DEFAULT_TLS_PORT)
    return MqttAddress(parts.hostname, port, user, unquote(parts.password or "") if user else None, tls)


def reason(code: int) -> str:
    return f"{_REASONS.get(code, 'refused')} (0x{code:02x})"


class MqttClient:
    """Connects when it is made. With `expiry_s` above 0 the broker keeps the session, and what comes meanwhile."""

    def __init__(
        self,
        address: MqttAddress,
        *,
        timeout_ms: int = 30_000,
        client_id: str = "",
        clean_start: bool = True,
        expiry_s: int = 0,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_ms / 1000
        self._parser = Parser(server_side=False, version=V5, max_packet_bytes=MAX_PACKET_BYTES)
        self._packets: deque[Packet] = deque()
        self._messages: deque[Publish] = deque()
        self._received: set[int] = set()
        self._last_id = 0
        self._last_sent_s = time.monotonic()
        try:
            plain = socket.create_connection(address[:2], self._timeout_s)
        except OSError as error:
            raise ClientError(
                CONNECTION_FAILED,
                f"cannot connect to {address.host}:{address.port}: {error.strerror or error}",
                "start a broker with `trunkline serve`, or name one with --url mqtt://HOST:PORT",
            ) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = plain if address.tls is None else address.tls.wrap(plain, address.host)
        properties = Properties()
        properties.session_expiry_interval = expiry_s
        password = None if address.password is None else address.password.encode()
        try:
            self._send(Connect(V5, client_id, clean_start, KEEP_ALIVE_S, None, address.user, password, properties))
            answer = self._wait_for(ConnAck)
        except ClientError as error:
            self._socket.close()
            raise error.in_handshake("an MQTT", "--url mqtt://HOST:PORT") from None
        if answer.reason_code:
            raise ClientError(CONNECTION_FAILED, f"the broker refuses the connection: {reason(answer.reason_code)}")
        self.session_present = answer.session_present

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._send(Disconnect())
        except ClientError:
            pass
        self._socket.close()

    # -- what it does --------------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False, properties: Properties | None = None
    ) -> None:
        """Publish, and wait until the broker has it."""
        packet_id = self._next_id() if qos else 0
        try:
            self._send(Publish(topic, payload, qos, retain, False, packet_id, properties))
        except ValueError as error:
            raise ClientError(DISCONNECTED, str(error)) from None
        if qos == 1:
            self._check(self._wait_for(PubAck))
        elif qos == 2:
            self._check(self._wait_for(PubRec))
            self._send(PubRel(packet_id))
            self._wait_for(PubComp)

    def subscribe(self, filters: Sequence[str], qos: int = 0) -> None:
        self._send(Subscribe(self._next_id(), [Subscription(each, qos) for each in filters]))
        answer = self._wait_for(SubAck)
        for name, code in zip(filters, answer.reason_codes, strict=True):
            if code >= errors.UNSPECIFIED_ERROR:
                raise ClientError(REFUSED, f"the broker refuses {name}: {reason(code)}")

    def messages(
        self, idle_timeout_s: float | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Publish]:
        """What arrives, until the connection ends or nothing has come for so long; `until` is asked now and then."""
        while True:
            while self._messages:
                yield self._messages.popleft()
            if not self._wait_for_message(idle_timeout_s, until):
                return

    def acknowledge(self, message: Publish) -> None:
        """Tell the broker that the message was dealt with."""
        if message.qos == 1:
            self._send(PubAck(message.packet_id))
        elif message.qos == 2:
            self._send(PubRec(message.packet_id))
            while message.packet_id in self._received:
                if not self._read(self._timeout_s):
                    raise ClientError(TIMED_OUT, f"{self.address.host}:{self.address.port} did not answer")

    def manage(self, operation: str, **asked: object) -> object:
        """Ask the broker's management; ClientError with its words if it refuses."""
        response_topic = f"$SYS/answer/{uuid.uuid4().hex}"
        self.subscribe([response_topic])
        properties = Properties()
        properties.response_topic = response_topic
        self.publish(PREFIX + operation, json.dumps(asked).encode(), qos=1, properties=properties)
        for message in self.messages(self._timeout_s):
            if message.topic == response_topic:
                answer = json.loads(message.payload)
                if "error" in answer:
                    raise ClientError(REFUSED, str(answer["error"]))
                return answer["result"]
        raise ClientError(TIMED_OUT, f"{self.address.host}:{self.address.port} did not answer")

    # -- packets -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until the broker has dealt with what was sent: QoS 0 has no answer, but a refusal ends the connection."""
        self._ping()

    def _ping(self) -> None:
        self._send(PingReq())
        self._wait_for(PingResp)

    def _check(self, answer: PubAck | PubRec) -> None:
        if answer.reason_code >= errors.UNSPECIFIED_ERROR:
            told = answer.properties.reason_string if answer.properties is not None else None
            why = f": {told}" if told else ""
            raise ClientError(REFUSED, f"the broker refuses the publication: {reason(answer.reason_code)}{why}")

    def _next_id(self) -> int:
        self._last_id = self._last_id % 65_535 + 1
        return self._last_id

    def _send(self, packet: Packet) -> None:
        try:
            self._socket.sendall(encode(packet, V5))
        except OSError as error:
            raise self._lost(error) from None
        self._last_sent_s = time.monotonic()

    def _lost(self, error: OSError | None = None) -> ClientError:
        why = f": {error.strerror or error}" if error is not None else ""
        return ClientError(DISCONNECTED, f"{self.address.host}:{self.address.port} closed the connection{why}")

    def _wait_for(self, kind: type[P]) -> P:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            for packet in self._packets:
                if isinstance(packet, kind):
                    self._packets.remove(packet)
                    return packet
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._read(left_s):
                where = f"{self.address.host}:{self.address.port}"
                raise ClientError(TIMED_OUT, f"{where} did not answer within {self._timeout_s:g} s")

    def _wait_for_message(self, idle_timeout_s: float | None, until: Callable[[], bool] | None) -> bool:
        deadline_s = None if idle_timeout_s is None else time.monotonic() + idle_timeout_s
        while not self._messages:
            now_s = time.monotonic()
            if deadline_s is not None and now_s >= deadline_s:
                return False
            ping_s = self._last_sent_s + KEEP_ALIVE_S / 2
            if now_s >= ping_s:
                self._ping()
                continue
            if until is not None and until():
                return False
            wait_s = min(ping_s, ping_s if deadline_s is None else deadline_s) - now_s
            self._read(wait_s if until is None else min(wait_s, _ASK_EVERY_S))
        return True

    def _read(self, timeout_s: float) -> bool:
        """Read once; False if nothing came."""
        self._socket.settimeout(max(0.001, timeout_s))
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        finally:
            self._socket.settimeout(self._timeout_s)
        if not data:
            raise self._lost()
        for event in self._parser.feed(data):
            self._take(event)
        return True

    def _take(self, event: Packet | MalformedPacket) -> None:
        if isinstance(event, MalformedPacket):
            raise ClientError(OTHER_PROTOCOL, f"{self.address.host}:{self.address.port} sent what is not MQTT: {event}")
        if isinstance(event, Disconnect):
            properties = event.properties
            why = f": {properties.reason_string}" if properties is not None and properties.reason_string else ""
            raise ClientError(DISCONNECTED, f"the broker ended the connection: {reason(event.reason_code)}{why}", "")
        if isinstance(event, Publish):
            if event.qos < 2:
                self._messages.append(event)
            elif event.packet_id not in self._received:
                self._received.add(event.packet_id)
                self._messages.append(event)
            else:
                self._send(PubRec(event.packet_id))
        elif isinstance(event, PubRel):
            self._received.discard(event.packet_id)
            self._send(PubComp(event.packet_id))
        else:
            self._packets.append(event)
