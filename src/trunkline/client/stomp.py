"""A small synchronous STOMP 1.2 client on our own codec, for the command line. It talks to other brokers just as well.

One connection, used by one thread. `send` waits for the broker's receipt; `messages` yields what subscriptions bring, and whoever
took a message says so by `acknowledge`. An ERROR frame is a `ClientError` with the broker's words.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

from trunkline.client.errors import CONNECTION_FAILED, DISCONNECTED, OTHER_PROTOCOL, REFUSED, TIMED_OUT, ClientError
from trunkline.client.login import Tls
from trunkline.protocols.stomp.codec import V1_0, V1_2, Frame, Parser, encode_frame, headers_of

DEFAULT_PORT = 61613
DEFAULT_TLS_PORT = 61614
HEART_BEAT_MS = 30_000
_MAX_BODY_BYTES = 536_870_912
_READ_BYTES = 256 * 1024
_ASK_EVERY_S = 0.5


class StompAddress(NamedTuple):
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    tls: Tls | None = None


class Message(NamedTuple):
    headers: dict[str, str]
    body: bytes


def parse_url(url: str) -> StompAddress:
    """`stomp://user:password@host:port/vhost`, `stomps://…` for TLS, or `host:port`. ValueError for anything else."""
    parts = urlsplit(url if "://" in url else f"stomp://{url}")
    if parts.scheme not in {"stomp", "stomps"} or not parts.hostname or parts.port == 0:
        raise ValueError(f"{url!r} is not stomp://user:password@host:port/vhost")
    tls = Tls() if parts.scheme == "stomps" else None
    port = parts.port or (DEFAULT_PORT if tls is None else DEFAULT_TLS_PORT)
    given = (unquote(parts.username), unquote(parts.password or "")) if parts.username else ("guest", "guest")
    return StompAddress(parts.hostname, port, *given, unquote(parts.path[1:]) or "/", tls)


class StompClient:
    """Connects when it is made."""

    def __init__(self, address: StompAddress, *, timeout_ms: int = 30_000) -> None:
        self.address = address
        self._timeout_s = timeout_ms / 1000
        self._parser = Parser(10_000, 1 << 20, _MAX_BODY_BYTES)
        self._frames: deque[tuple[str, dict[str, str], bytes]] = deque()
        self._messages: deque[Message] = deque()
        self._version = V1_0  # CONNECTED is not escaped
        self._receipts = 0
        self._last_sent_s = time.monotonic()
        try:
            plain = socket.create_connection(address[:2], self._timeout_s)
        except OSError as error:
            raise ClientError(
                CONNECTION_FAILED,
                f"cannot connect to {address.host}:{address.port}: {error.strerror or error}",
                "start a broker with `trunkline serve`, or name one with --url stomp://HOST:PORT",
            ) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = plain if address.tls is None else address.tls.wrap(plain, address.host)
        asked = {
            "accept-version": "1.2",
            "host": address.vhost,
            "login": address.user,
            "passcode": address.password,
            "heart-beat": f"{HEART_BEAT_MS},0",
        }
        try:
            self._send("CONNECT", asked)
            self.session = self._wait_for("CONNECTED").get("session", "")
        except ClientError as error:
            self._socket.close()
            raise error.in_handshake("a STOMP", "--url stomp://HOST:PORT") from None
        self._version = V1_2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(quietly=error is not None)

    def close(self, *, quietly: bool = False) -> None:
        """Say goodbye, and wait until the broker has dealt with everything; not if that would hide an error."""
        try:
            if not quietly:
                self.ask("DISCONNECT", {})
        except ClientError:
            pass
        finally:
            self._socket.close()

    # -- what it does --------------------------------------------------------------------------------------------------

    def ask(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a frame and wait for its receipt."""
        self._receipts += 1
        receipt = str(self._receipts)
        self._send(command, {**headers, "receipt": receipt}, body)
        while self._wait_for("RECEIPT").get("receipt-id") != receipt:
            pass

    def send(self, destination: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a message, and wait until the broker has it on disk."""
        own = {"destination": destination, "content-length": str(len(body))}
        self.ask("SEND", {**headers, **own}, body)

    def subscribe(self, destination: str, headers: Mapping[str, str]) -> None:
        self.ask("SUBSCRIBE", {"id": "1", "ack": "client-individual", **headers, "destination": destination})

    def messages(
        self, idle_timeout_s: float | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Message]:
        """What arrives, until nothing has come for so long; `until` is asked now and then."""
        deadline = None if idle_timeout_s is None else time.monotonic() + idle_timeout_s
        while True:
            while self._frames:
                self._take()
            while self._messages:
                yield self._messages.popleft()
                deadline = None if idle_timeout_s is None else time.monotonic() + idle_timeout_s
            left_s = _ASK_EVERY_S if deadline is None else min(deadline - time.monotonic(), _ASK_EVERY_S)
            if left_s <= 0 or (until is not None and until()):
                return
            self._read(left_s)
            self._beat()

    def acknowledge(self, message: Message) -> None:
        self._send("ACK", {"id": message.headers["ack"]})

    def take_over(self) -> socket.socket:
        """The connection itself, for who speaks STOMP without us."""
        return self._socket

    # -- frames ----------------------------------------------------------------------------------------------------------

    def _send(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._write(encode_frame(command.encode(), pairs, body, self._version))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise self._gone(error) from None
        self._last_sent_s = time.monotonic()

    def _beat(self) -> None:
        if time.monotonic() - self._last_sent_s > HEART_BEAT_MS / 2000:
            self._write(b"\n")

    def _wait_for(self, command: str) -> dict[str, str]:
        deadline = time.monotonic() + self._timeout_s
        while True:
            while self._frames:
                found, headers = self._take()
                if found == command:
                    return headers
            if time.monotonic() > deadline:
                raise ClientError(TIMED_OUT, f"{self.address.host}:{self.address.port} did not answer")
            self._read(self._timeout_s)

    def _take(self) -> tuple[str, dict[str, str]]:
        command, headers, body = self._frames.popleft()
        if command == "ERROR":
            words = body.decode(errors="replace").strip() or headers.get("message", "it does not say why")
            raise ClientError(REFUSED, f"the broker refuses: {words}")
        if command == "MESSAGE":
            self._messages.append(Message(headers, body))
        return command, headers

    def _read(self, timeout_s: float) -> None:
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            raise self._gone(error) from None
        if not data:
            raise self._gone(None)
        for event in self._parser.feed(data):
            if not isinstance(event, Frame):
                raise ClientError(OTHER_PROTOCOL, "what the broker says is not STOMP")
            headers = headers_of(event.lines, self._version)
            self._frames.append((event.command.decode("latin-1"), headers, event.body))

    def _gone(self, error: OSError | None) -> ClientError:
        why = "" if error is None else f": {error.strerror or error}"
        return ClientError(DISCONNECTED, f"{self.address.host}:{self.address.port} closed the connection{why}")
