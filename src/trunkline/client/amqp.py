"""A small synchronous AMQP 0-9-1 client on our own codec, for the command line. It talks to RabbitMQ just as well.

One connection, one channel, one call at a time. A refusal closes the channel or the connection; either way this client
reports it as `ClientError` with the reply's name (`NOT_FOUND`) and text, and is of no further use.

`manage` asks what AMQP has no methods for: see protocols/amqp/management. Only Trunkline answers it.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.errors import BLOCKED, CONNECTION_FAILED, DISCONNECTED, OTHER_PROTOCOL, TIMED_OUT, ClientError
from trunkline.client.login import Tls
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import (
    PROTOCOL_HEADER,
    FrameError,
    Parser,
    ParserEvent,
    Properties,
    decode_properties,
    encode_method,
    encode_properties,
    encode_publish,
)
from trunkline.protocols.amqp.errors import REPLY_NAMES
from trunkline.protocols.amqp.frames import Ack, Content, MethodFrame, Nack, ProtocolHeader
from trunkline.protocols.amqp.management import ADDRESS
from trunkline.version import VERSION

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
_READ_BYTES = 256 * 1024
_CHANNEL = 1
_REPLY_TO = "amq.rabbitmq.reply-to"

R = TypeVar("R", bound=m.Method)


class Address(NamedTuple):
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    tls: Tls | None = None


def parse_url(url: str) -> Address:
    """`amqp://user:password@host:port/vhost`, `amqps://…` for TLS, or `host:port`. ValueError for anything else."""
    parts = urlsplit(url if "://" in url else f"amqp://{url}")
    if parts.scheme not in {"amqp", "amqps"} or not parts.hostname or parts.port == 0:
        raise ValueError(f"{url!r} is not amqp://user:password@host:port/vhost")
    tls = Tls() if parts.scheme == "amqps" else None
    return Address(
        parts.hostname,
        parts.port or (DEFAULT_PORT if tls is None else DEFAULT_TLS_PORT),
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        unquote(parts.path[1:]) or "/",
        tls,
    )


class GotMessage(NamedTuple):
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Properties
    body: bytes
    left: int
    tag: int


class AmqpClient:
    def __init__(
        self, address: Address, *, timeout_ms: int = 30_000, on_blocked: Callable[[str], None] | None = None
    ) -> None:
        """`on_blocked` is called with the reason when the broker says that it takes no publications for now."""
        self.address = address
        self._on_blocked = on_blocked
        self._blocked: str | None = None
        self._timed_out = False
        self._parser = Parser(expect_header=False)
        self._events: deque[ParserEvent] = deque()
        self._frame_max_bytes = 131_072
        self._replies_wanted = False
        where = self._where = f"{address.host}:{address.port}"
        try:
            plain = socket.create_connection((address.host, address.port), timeout_ms / 1000)
        except OSError as error:
            raise ClientError(
                CONNECTION_FAILED,
                f"cannot connect to {where}: {error.strerror or error}",
                "start a broker with `trunkline serve`, or name one with --url amqp://HOST:PORT",
            ) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = plain if address.tls is None else address.tls.wrap(plain, address.host)
        try:
            self._open()
        except ClientError as error:
            self._socket.close()
            raise error.in_handshake("an AMQP", "--url amqp://HOST:PORT") from None
        except BaseException:
            self._socket.close()
            raise

    def _open(self) -> None:
        self._send(PROTOCOL_HEADER)
        self._expect(m.ConnectionStart, 0)
        response = b"\0" + self.address.user.encode() + b"\0" + self.address.password.encode()
        properties: dict[str, FieldValue] = {
            "product": "trunkline",
            "version": VERSION,
            "capabilities": {"authentication_failure_close": True, "basic.nack": True, "connection.blocked": True},
        }
        self._send(encode_method(0, m.ConnectionStartOk(properties, "PLAIN", response, "en_US")))
        tune = self._expect(m.ConnectionTune, 0)
        self._frame_max_bytes = tune.frame_max or self._frame_max_bytes
        self._parser.set_frame_max(self._frame_max_bytes)
        self._send(encode_method(0, m.ConnectionTuneOk(tune.channel_max, self._frame_max_bytes, 0)))
        self._send(encode_method(0, m.ConnectionOpen(self.address.vhost)))
        self._expect(m.ConnectionOpenOk, 0)
        self.call(m.ChannelOpen(), m.ChannelOpenOk)

    def close(self) -> None:
        try:
            if self._timed_out or self._blocked is not None:
                return  # who did not answer before will not say goodbye, nor who does not read
            self._send(encode_method(0, m.ConnectionClose(200, "Goodbye")))
            self._expect(m.ConnectionCloseOk, 0)
        except ClientError:
            pass
        finally:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, method: m.Method, reply: type[R]) -> R:
        self._send(encode_method(_CHANNEL, method))
        return self._expect(reply, _CHANNEL)

    def send(self, method: m.Method) -> None:
        """Send a method that is not answered."""
        self._send(encode_method(_CHANNEL, method))

    def take_over(self) -> socket.socket:
        """The connection itself, for a caller that reads and writes frames from here on; only `close` is left to this one."""
        return self._socket

    def publish(
        self, exchange: str, routing_key: str, body: bytes, properties: Properties, *, mandatory: bool = True
    ) -> None:
        """Publish and wait for the confirm (`confirm_publications` first). ClientError if it was returned or refused."""
        section = encode_properties(properties)
        self._send(
            encode_publish(_CHANNEL, exchange, routing_key, section, body, self._frame_max_bytes, mandatory=mandatory)
        )
        returned: m.Method | None = None
        while True:
            event = self._next()
            if isinstance(event, Content) and isinstance(event.method, m.BasicReturn):
                returned = event.method
            elif isinstance(event, Nack):
                raise ClientError("REJECTED", f"a queue did not take the message for '{routing_key}'")
            elif isinstance(event, Ack):
                if isinstance(returned, m.BasicReturn):
                    raise ClientError(
                        returned.reply_text, f"no queue for '{routing_key}' of exchange '{exchange or '(default)'}'"
                    )
                return

    def confirm_publications(self) -> None:
        self.call(m.ConfirmSelect(False), m.ConfirmSelectOk)

    def get(self, queue: str, *, no_ack: bool) -> GotMessage | None:
        self._send(encode_method(_CHANNEL, m.BasicGet(0, queue, no_ack)))
        while True:
            event = self._next()
            if isinstance(event, MethodFrame) and isinstance(event.method, m.BasicGetEmpty):
                return None
            if isinstance(event, Content) and isinstance(event.method, m.BasicGetOk):
                found = event.method
                return GotMessage(
                    found.exchange,
                    found.routing_key,
                    found.redelivered,
                    decode_properties(event.properties),
                    event.body,
                    found.message_count,
                    found.delivery_tag,
                )

    def acknowledge(self, tag: int) -> None:
        self._send(encode_method(_CHANNEL, m.BasicAck(tag, False)))

    def manage(self, do: str, **arguments: object) -> object:
        """Ask the broker's management; ClientError with its reason if it refuses."""
        if not self._replies_wanted:
            self.call(m.BasicConsume(0, _REPLY_TO, "", False, True, False, False, {}), m.BasicConsumeOk)
            self._replies_wanted = True
        body = json.dumps({"do": do, **arguments}).encode()
        section = encode_properties(Properties(content_type="application/json", reply_to=_REPLY_TO))
        self._send(encode_publish(_CHANNEL, "", ADDRESS, section, body, self._frame_max_bytes, mandatory=True))
        while True:
            event = self._next()
            if isinstance(event, Content) and isinstance(event.method, m.BasicReturn):
                raise ClientError("NOT_IMPLEMENTED", "the broker has no management: is it a Trunkline?")
            if isinstance(event, Content) and isinstance(event.method, m.BasicDeliver):
                reply = json.loads(event.body)
                if "error" in reply:
                    raise ClientError(str(reply["error"]).upper().replace(" ", "_"), str(reply["text"]))
                return reply["ok"]

    # -- frames --------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            # A broker that closes the connection says why first.
            self._explain()
            raise ClientError(DISCONNECTED, f"the connection was lost: {error.strerror or error}") from None

    def _explain(self) -> None:
        """Raise what the broker said before it went, if it said something."""
        try:
            while True:
                self._next()
        except ClientError as error:
            if error.name != DISCONNECTED:
                raise

    def _expect(self, reply: type[R], channel: int) -> R:
        while True:
            event = self._next()
            if isinstance(event, MethodFrame) and event.channel == channel and isinstance(event.method, reply):
                return event.method

    def _next(self) -> ParserEvent:
        while not self._events:
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                self._timed_out = True
                if self._blocked is not None:
                    raise ClientError(BLOCKED, f"the broker takes no publications: {self._blocked}") from None
                raise ClientError(TIMED_OUT, f"{self._where} did not answer in time") from None
            except OSError as error:
                raise ClientError(DISCONNECTED, f"the connection was lost: {error.strerror or error}") from None
            if not data:
                raise ClientError(DISCONNECTED, f"{self._where} closed the connection")
            if data.startswith(b"AMQP"):
                raise ClientError("UNSUPPORTED_VERSION", "the broker speaks another version of AMQP")
            self._events.extend(self._parser.feed(data))
        event = self._events.popleft()
        if isinstance(event, MethodFrame) and isinstance(event.method, m.ChannelClose | m.ConnectionClose):
            closed = event.method
            name = REPLY_NAMES.get(closed.reply_code, str(closed.reply_code))
            raise ClientError(name, closed.reply_text.removeprefix(f"{name} - "))
        if isinstance(event, FrameError | ProtocolHeader):
            raise ClientError(OTHER_PROTOCOL, f"{self._where} sent what is not AMQP: {event}")
        if isinstance(event, MethodFrame) and isinstance(event.method, m.ConnectionBlocked):
            self._blocked = event.method.reason
            if self._on_blocked is not None:
                self._on_blocked(self._blocked)
        elif isinstance(event, MethodFrame) and isinstance(event.method, m.ConnectionUnblocked):
            self._blocked = None
        return event
