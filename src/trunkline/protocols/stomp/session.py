"""A STOMP connection as a state machine: bytes in, bytes out, no socket.

    state        the client may send              then
    UNCONNECTED  CONNECT, STOMP                   → CONNECTING, while the login is checked
    CONNECTED    every other command; DISCONNECT  → LEAVING, until every receipt before it is told
    any          what is not in its row           ERROR, and CLOSED

`STATES` is the table that drives the code: what it does not list for a state is told to be out of place.

Rules kept:

1. Frames take effect in the order of arrival. One that must wait (a queue's files, an fsync) holds up those behind it on this
   connection; what has been read stays in `_backlog`, and the connection is not read on. Publications and settlements take
   effect together at the end of the turn; whatever could see the difference first has them carried out.
2. Every error ends the connection: an ERROR frame says why, with the `receipt-id` of the frame that it is about, and nothing
   that comes after that frame takes effect.
3. A frame with a `receipt` is answered when what it asked for is done, and durable where it is to be (`sending`).
4. When the connection goes, what it holds goes back to the queues and its exclusive queues are deleted.
5. A client that does not take its messages gets no more once `write_high_water_bytes` wait for it, but what it sends is read.
   Publishers are not read while the broker is short of space, or `max_unconfirmed_bytes` wait for the disk.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from trunkline.broker.administration.connections import About
from trunkline.broker.logins import LoginRefused
from trunkline.broker.messaging.settlements import Acknowledgements
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.protocols.listener.session import Wire
from trunkline.protocols.stomp.codec import (
    V1_0,
    V1_1,
    V1_2,
    Event,
    Frame,
    MalformedFrame,
    Parser,
    Send,
    encode_frame,
    encode_receipt,
    headers_of,
    unescaped,
)
from trunkline.protocols.stomp.connection import Later
from trunkline.protocols.stomp.endpoints import flag
from trunkline.protocols.stomp.errors import FAILURES, StompError, error_of, missing
from trunkline.protocols.stomp.heart_beats import HeartBeats
from trunkline.protocols.stomp.sending import Sender
from trunkline.protocols.stomp.service import Service
from trunkline.protocols.stomp.subscribing import Subscriptions
from trunkline.security.principal import Principal, anonymous
from trunkline.security.users import DEFAULT_USER, Access
from trunkline.version import VERSION

_VERSIONS: Final = {"1.0": V1_0, "1.1": V1_1, "1.2": V1_2}
_SPOKEN: Final = ",".join(_VERSIONS)
_DEFAULT_VHOST: Final = "/"
DEFAULT_EXCHANGE: Final = "amq.default"  # what permissions call the exchange without a name
PROTOCOL: Final = "stomp"
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_MAX_SHOWN: Final = 1_000
_STOP_READING_FACTOR: Final = 4


class State(Enum):
    UNCONNECTED = "unconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    LEAVING = "leaving"
    CLOSED = "closed"


class Session:
    def __init__(self, service: Service, wire: Wire) -> None:
        limits = service.limits
        self.service = service
        self.limits = limits
        self.host = wire.host
        self.principal: Principal = anonymous(wire.host)
        self.vhost = VirtualHost("")  # until CONNECT
        self.version = V1_0
        self.envelopes = service.envelopes_of("", V1_0)
        self.session_id = "session-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        self.acknowledgements = Acknowledgements(service.turn.collect)
        self.state = State.UNCONNECTED
        self.writable = True
        self.now_ms = service.clock.wall_ms()
        self.opened_ms = service.clock.monotonic_ms()
        self.heart_beats = HeartBeats(self.opened_ms)
        self._wire = wire
        self._subscriptions = Subscriptions(self)
        self._sender = Sender(self, self._subscriptions)
        self._parser = Parser(limits.max_headers, limits.max_head_bytes, limits.max_message_bytes)
        self._publishes = False
        self._unconfirmed_bytes = 0
        self._transaction_bytes = 0
        self._out: list[bytes] = []
        self._backlog: list[Event] = []
        self._backlog_bytes = 0
        self._task: asyncio.Task[None] | None = None

    # -- bytes in ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def settled(self) -> bool:
        """Whether the client has said who it is."""
        return self.state is not State.UNCONNECTED

    @property
    def held_bytes(self) -> int:
        return self._parser.held_bytes + self._backlog_bytes + self._transaction_bytes

    def read(self, data: memoryview) -> None:
        turn = self.service.turn
        turn.hold()
        try:
            self.receive(bytes(data))
        finally:
            turn.let_go(unfinished=self._parser.held_bytes > 0)
        if not self._may_read():
            self._wire.pause_reading()

    def receive(self, data: bytes) -> None:
        self.heart_beats.read_ms = self.service.clock.monotonic_ms()
        self.now_ms = self.service.clock.wall_ms()
        events = self._parser.feed(data)
        if self._task is not None:
            self._hold_back(events)
        elif events:
            self._take_up(events)

    def _may_read(self) -> bool:
        if self._task is not None or self._unconfirmed_bytes > self.limits.max_unconfirmed_bytes:
            return False
        if self._publishes and self.service.space.blocked is not None:
            return False
        return self.writable or self._wire.unsent_bytes() < _STOP_READING_FACTOR * self.limits.write_high_water_bytes

    def read_on(self) -> None:
        """Something that kept this connection from being read may have ended."""
        if self.state is not State.CLOSED and self._may_read():
            self._wire.resume_reading()

    def _hold_back(self, events: list[Event]) -> None:
        self._backlog += events
        self._backlog_bytes += sum(len(event.body) for event in events if isinstance(event, Send | Frame))

    def _take_up(self, events: list[Event]) -> None:
        sender = self._sender
        for position, event in enumerate(events, 1):
            if self.state is State.CLOSED:
                return
            try:
                if isinstance(event, Send):
                    # The table's step for this one, without looking it up: it comes once per message.
                    if self.state is not State.CONNECTED:
                        raise _out_of_place(self.state, "SEND")
                    self._publishes = True
                    later = sender.send(event)
                elif isinstance(event, Frame):
                    later = None if self._acknowledged(event) else self._step(event)
                else:
                    raise event
            except FAILURES as failure:
                self.fail(failure, self._receipt_of(event))
                return
            if later is not None:
                self._hold_back(events[position:])
                self._task = asyncio.get_running_loop().create_task(self._carry_out(later, self._receipt_of(event)))
                return

    def _acknowledged(self, frame: Frame) -> bool:
        """The same short cut for an ACK with nothing but an id; False: it is something else."""
        if frame.command != b"ACK" or len(frame.lines) != 1 or self.state is not State.CONNECTED:
            return False
        line = frame.lines[0]
        if self.version != V1_2 or not line.startswith(b"id:") or b"\\" in line:
            return False
        self._subscriptions.acknowledge(self._subscriptions.take("ACK", line[3:].decode("utf-8", "replace")))
        return True

    async def _carry_out(self, later: Later, receipt: bytes) -> None:
        assert later is not None
        try:
            await later
        except FAILURES as failure:
            self.fail(failure, receipt)
        except Exception as error:
            self.complain("failed STOMP frame", "a frame failed", error=error)
            self.fail(StompError("Processing error", "Processing error"), receipt)
        self._task = None
        events, self._backlog, self._backlog_bytes = self._backlog, [], 0
        self.now_ms = self.service.clock.wall_ms()
        self._take_up(events)
        self.read_on()

    # -- the states ------------------------------------------------------------------------------------------------

    def _step(self, frame: Frame) -> Later:
        command = frame.command.decode("latin-1")
        act = STATES[self.state].get(command)
        if act is None:
            raise _out_of_place(self.state, command)
        headers = headers_of(frame.lines, V1_0 if self.state is State.UNCONNECTED else self.version)
        return act(self, headers, self._receipt_of(frame))

    def _receipt_of(self, event: Event) -> bytes:
        """As it came, and as it goes back; nothing, if it cannot be read."""
        receipt = b""
        if isinstance(event, Send):
            receipt = event.receipt
        elif isinstance(event, Frame):
            receipt = next((line[8:] for line in event.lines if line.startswith(b"receipt:")), b"")
        try:
            unescaped(receipt, self.version)
        except MalformedFrame:
            return b""
        return receipt

    def _answer(self, receipt: bytes) -> None:
        if receipt and not self.closed:
            self.send(encode_receipt(receipt))

    # -- CONNECT ---------------------------------------------------------------------------------------------------

    def _connect(self, headers: dict[str, str], receipt: bytes) -> Later:
        asked = [each.strip() for each in headers.get("accept-version", "1.0").split(",")]
        version = max((each for each in asked if each in _VERSIONS), default=None)
        if version is None:
            raise StompError("Version mismatch", f"Supported versions are {_SPOKEN}\n")
        beats = self.heart_beats.agree(headers.get("heart-beat", "0,0"), self.limits.min_heart_beat_ms)
        self.state = State.CONNECTING
        return self._log_in(headers, version, beats)

    async def _log_in(self, headers: dict[str, str], version: str, beats: str) -> None:
        login, logins, certificate = headers.get("login"), self.service.logins, self._wire.certificate
        # Who says nothing is the guest, who comes from this machine only; unless everybody has to say something.
        user, passcode = (DEFAULT_USER, DEFAULT_USER) if login is None else (login, headers.get("passcode", ""))
        try:
            if login is None and certificate:
                principal = logins.by_certificate(certificate, self.host, PROTOCOL)
            elif login is None and logins.settings.required:
                raise logins.refused("", self.host, PROTOCOL, "no login")
            else:
                principal = await logins.by_password(user, passcode.encode(), self.host, PROTOCOL)
        except LoginRefused:
            raise StompError("Bad CONNECT", f"Access refused for user '{user}'\n") from None
        if self.closed:
            return
        host = headers.get("host", _DEFAULT_VHOST)
        # Many clients say whom they have called; where that is no virtual host, it is this machine.
        if host not in self.service.vhosts and (host in _HERE or host == self._wire.local_host):
            host = _DEFAULT_VHOST
        vhost = self.service.vhosts.get(host)
        if vhost is None or not self.service.access.may_enter(principal, host):
            raise StompError("Bad CONNECT", f"Virtual host '{host}' access denied")
        self.principal = principal
        self.vhost = vhost
        self.version = _VERSIONS[version]
        self.envelopes = self.service.envelopes_of(host, self.version)
        self.state = State.CONNECTED
        told = {"server": f"Trunkline/{VERSION}", "session": self.session_id, "heart-beat": beats, "version": version}
        self.send(encode_frame(b"CONNECTED", [(k.encode(), v.encode()) for k, v in told.items()], b"", V1_0))

    def _disconnect(self, headers: dict[str, str], receipt: bytes) -> Later:
        self.state = State.LEAVING
        self._sender.finish(receipt)
        return None

    # -- subscriptions and settlements ---------------------------------------------------------------------------------

    def _subscribe(self, headers: dict[str, str], receipt: bytes) -> Later:
        return self._do(self._subscriptions.subscribe(headers), receipt)

    def _unsubscribe(self, headers: dict[str, str], receipt: bytes) -> Later:
        return self._do(self._subscriptions.unsubscribe(headers), receipt)

    async def _do(self, later: Later, receipt: bytes) -> None:
        self.flush()
        assert later is not None
        await later
        self._answer(receipt)

    def _acknowledge(self, headers: dict[str, str], receipt: bytes) -> Later:
        return self._settle("ACK", headers, receipt, requeue=False)

    def _refuse(self, headers: dict[str, str], receipt: bytes) -> Later:
        return self._settle("NACK", headers, receipt, requeue=flag(headers, "requeue", default=True))

    def _settle(self, command: str, headers: dict[str, str], receipt: bytes, *, requeue: bool) -> Later:
        transaction = headers.get("transaction")
        if transaction is not None:
            self._sender.check_open(transaction.encode())
        taken = self._subscriptions.take(command, headers.get("id" if self.version >= V1_2 else "message-id"))
        if transaction is not None:
            self._sender.settle_in(transaction.encode(), taken, acknowledge=command == "ACK", requeue=requeue)
            self._answer(receipt)
            return None
        if command == "ACK":
            self._subscriptions.acknowledge(taken)
        else:
            self._subscriptions.refuse(taken, requeue=requeue)
        return self._answer_when_settled(receipt) if receipt else None

    async def _answer_when_settled(self, receipt: bytes) -> None:
        self.flush()
        await self.service.messaging.settlements_stored()
        self._answer(receipt)

    # -- transactions ------------------------------------------------------------------------------------------------

    def _begin(self, headers: dict[str, str], receipt: bytes) -> Later:
        self._sender.begin(_transaction_of("BEGIN", headers))
        self._answer(receipt)
        return None

    def _commit(self, headers: dict[str, str], receipt: bytes) -> Later:
        return self._do(self._sender.commit(_transaction_of("COMMIT", headers)), receipt)

    def _abort(self, headers: dict[str, str], receipt: bytes) -> Later:
        self._sender.abort(_transaction_of("ABORT", headers))
        self._answer(receipt)
        return None

    # -- what the parts ask for --------------------------------------------------------------------------------------

    def check_access(self, access: Access, kind: str, name: str) -> None:
        shown = name if name or kind == "queue" else DEFAULT_EXCHANGE
        self.service.access.check_vhost(self.principal, self.vhost.name, access, shown, kind, protocol=PROTOCOL)

    def check_key(self, access: Access, exchange: str, routing_key: str) -> None:
        control = self.service.access
        info = self.vhost.exchanges.get(exchange)
        if info is not None and not control.open and info.routing_kind == "topic":
            control.check_key(self.principal, self.vhost.name, exchange, access, routing_key, protocol=PROTOCOL)

    def access_changed(self) -> None:
        """What users may do has changed."""
        self._sender.access_changed()
        self._subscriptions.access_changed()

    def note_transaction(self, more_bytes: int) -> None:
        self._transaction_bytes += more_bytes

    def note_unconfirmed(self, more_bytes: int) -> None:
        self._unconfirmed_bytes += more_bytes
        if more_bytes < 0:
            self.read_on()

    def flush(self) -> None:
        self.acknowledgements.carry_out()
        self.service.publishing.flush()

    # -- bytes out -----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """To be written at the end of the turn. What is answered late, when the connection is closed, goes nowhere."""
        if self.state is State.CLOSED or not data:
            return
        if not self._out:
            self.service.turn.output(self._write)
        self._out.append(data)

    def _write(self) -> None:
        out, self._out = self._out, []
        if out:
            self.heart_beats.written_ms = self.service.clock.monotonic_ms()
            self._wire.write(out[0] if len(out) == 1 else b"".join(out))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._subscriptions.wake()
        self.read_on()

    # -- errors, and the end ---------------------------------------------------------------------------------------

    def fail(self, failure: Exception, receipt: bytes = b"") -> None:
        if self.state is State.CLOSED:
            return
        error = error_of(failure)
        self.complain("closed STOMP connection", f"closing a STOMP connection: {error!s:.300}")
        self.flush()
        detail = error.detail.encode()
        line = b"receipt-id:" + receipt + b"\n" if receipt else b""
        headers = [
            (b"message", error.message[:_MAX_SHOWN].encode()),
            (b"content-type", b"text/plain"),
            (b"version", _SPOKEN.encode()),
            (b"content-length", str(len(detail)).encode()),
        ]
        frame = encode_frame(b"ERROR", headers, detail, self.version)
        self.send(b"ERROR\n" + line + frame.removeprefix(b"ERROR\n"))
        self.end()

    def end(self) -> None:
        """Send what is to be sent, and close."""
        self._write()
        self.state = State.CLOSED
        self._forget_input()
        self._wire.close()

    def _forget_input(self) -> None:
        self._backlog, self._backlog_bytes = [], 0
        self._parser.stop()

    def out_of_input(self) -> None:
        self.fail(StompError("resource_error", "too much is begun and not finished on this connection\n"))

    def shut_down(self) -> None:
        self._close("Server shutdown", "broker forced connection closure with reason 'shutdown'\n")

    def force_close(self, reason: str) -> None:
        """An operator's wish."""
        self._close("connection_forced", f"CONNECTION_FORCED - {reason}")

    def _close(self, message: str, detail: str) -> None:
        if self.state is State.CONNECTED:
            self.fail(StompError(message, detail))
        else:
            self.end()

    def about(self) -> About | None:
        """For whoever looks at connections."""
        if self.state in (State.UNCONNECTED, State.CONNECTING):
            return None
        details: dict[str, object] = {
            "state": self.state.value,
            "virtual_host": self.vhost.name,
            "session": self.session_id,
            "subscriptions": len(self._subscriptions),
            "unacknowledged": self._subscriptions.unsettled,
            "heart_beat_ms": [self.heart_beats.send_ms, self.heart_beats.expect_ms],
        }
        return About(f"STOMP {self.version / 10}", self.principal, details)

    def lost(self) -> None:
        """The connection is gone, whoever ended it."""
        self.state = State.CLOSED
        self._forget_input()
        self._out.clear()
        self.flush()
        self._sender.close()
        self._subscriptions.close()
        self.service.queues.delete_owned(self)

    def complain(self, kind: str, text: str, *, error: BaseException | None = None) -> None:
        self.service.complaints.add(kind, self.host, text, level=logging.WARNING, error=error)

    # -- time and space --------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Called several times a second."""
        if self.state is State.UNCONNECTED:
            if now_ms - self.opened_ms > self.limits.connect_timeout_ms:
                self.end()
        elif self.heart_beats.missed(now_ms) and self._may_read():
            self.complain("missed heart-beats", f"missed heart-beats, one every {self.heart_beats.expect_ms} ms")
            self.end()
        elif self.heart_beats.due(now_ms):
            self.send(b"\n")

    def space_changed(self) -> None:
        """The broker is short of space, or has enough again."""
        if self._may_read():
            self.read_on()
        else:
            self._wire.pause_reading()


def _transaction_of(command: str, headers: dict[str, str]) -> bytes:
    name = headers.get("transaction")
    if name is None:
        raise missing(command, "transaction")
    return name.encode()


def _out_of_place(state: State, command: str) -> StompError:
    if state is State.UNCONNECTED:
        return StompError("Illegal command", "You must log in using CONNECT first")
    if command in _COMMANDS:
        return StompError("Illegal command", f"{command} is out of place: the client is {state.value}\n")
    return StompError("Bad command", f'Could not interpret command "{command:.100}"\n')


Act = Callable[[Session, dict[str, str], bytes], Later]
_NONE: Final[Mapping[str, Act]] = {}

STATES: Final[Mapping[State, Mapping[str, Act]]] = {
    State.UNCONNECTED: {"CONNECT": Session._connect, "STOMP": Session._connect},
    State.CONNECTING: _NONE,  # what comes meanwhile waits
    State.CONNECTED: {
        "SUBSCRIBE": Session._subscribe,
        "UNSUBSCRIBE": Session._unsubscribe,
        "ACK": Session._acknowledge,
        "NACK": Session._refuse,
        "BEGIN": Session._begin,
        "COMMIT": Session._commit,
        "ABORT": Session._abort,
        "DISCONNECT": Session._disconnect,
    },
    State.LEAVING: _NONE,
    State.CLOSED: _NONE,
}
_COMMANDS: Final = frozenset({"SEND"}.union(*STATES.values()))
