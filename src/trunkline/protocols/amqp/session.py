"""An AMQP connection as a state machine: bytes in, bytes out, no socket.

    state       the client may send                    then
    header      AMQP 0 0 9 1                           → start    (anything else: our header, and close)
    start       connection.start-ok                    → tune     (or close, if the login is refused)
    tune        connection.tune-ok                     → open
    open        connection.open                        → running
    running     channels, publications, heartbeats
    closing     connection.close-ok; all else ignored  → closed   (after an error of the client, told by connection.close)
    closed      nothing

Rules kept:

1. Events are taken up in the order of arrival. A method that must wait (a queue's files, an fsync) holds up those behind
   it on this connection; what has been read stays in `_waiting`, and the server does not read on (`readable`).
2. A channel error (codes 311 to 406) closes that channel: its frames are ignored until channel.close-ok. Every other
   error closes the connection. Both carry RabbitMQ's code and text.
3. Output is collected and written once per turn, in the order in which it came about.
4. When the connection goes, its channels give back what they hold and its exclusive queues are deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Protocol

from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.broker.transactions.errors import TransactionError
from trunkline.cursors.queue import Delivery, QueueCursor
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import handshake, operations
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.channel import Channel
from trunkline.protocols.amqp.codec import (
    Properties,
    decode_properties,
    encode_deliveries,
    encode_method,
    encode_properties,
)
from trunkline.protocols.amqp.consumer import Consumer
from trunkline.protocols.amqp.errors import FrameError
from trunkline.protocols.amqp.frames import (
    HEARTBEAT_FRAME,
    MIN_FRAME_MAX_BYTES,
    PROTOCOL_HEADER,
    Ack,
    Content,
    Heartbeat,
    MethodFrame,
    Nack,
    ProtocolHeader,
    Publish,
    Reject,
)
from trunkline.protocols.amqp.mapping import Envelope, Envelopes
from trunkline.protocols.amqp.parser import Parser, ParserEvent
from trunkline.security.users import Access

if TYPE_CHECKING:
    from trunkline.protocols.amqp.service import Service

_CHANNEL_ERRORS = frozenset(
    {
        codes.CONTENT_TOO_LARGE,
        codes.NO_ROUTE,
        codes.NO_CONSUMERS,
        codes.ACCESS_REFUSED,
        codes.NOT_FOUND,
        codes.RESOURCE_LOCKED,
        codes.PRECONDITION_FAILED,
    }
)
_CODES = {
    Reason.NOT_FOUND: codes.NOT_FOUND,
    Reason.PRECONDITION_FAILED: codes.PRECONDITION_FAILED,
    Reason.ACCESS_REFUSED: codes.ACCESS_REFUSED,
    Reason.RESOURCE_LOCKED: codes.RESOURCE_LOCKED,
    Reason.NOT_ALLOWED: codes.NOT_ALLOWED,
    Reason.COMMAND_INVALID: codes.COMMAND_INVALID,
    Reason.RESOURCE_ERROR: codes.RESOURCE_ERROR,
}
_MAX_REPLY_TEXT_BYTES = 255


class Wire(Protocol):
    """What a session needs of its connection."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close once everything is written."""

    def readable_again(self) -> None:
        """The session can take more bytes."""


class Session:
    def __init__(self, service: Service, wire: Wire, *, peer: str, loopback: bool) -> None:
        self.service = service
        self.host, _, self.port = peer.rpartition(":")
        self.limits = service.limits
        self.publishing = service.publishing
        self.replies = service.replies
        self.peer = peer
        self.user = ""
        self.vhost = VirtualHost("")  # until connection.open
        self.envelopes = Envelopes()
        self.frame_max_bytes = service.limits.frame_max_bytes
        self.heartbeat_s = 0
        self.notify_cancel = False
        self.channels: dict[int, Channel] = {}
        self.writable_exchanges: set[str] = set()  # that this user may publish to, as far as was asked
        self.writable = True
        self.now_ms = service.clock.wall_ms()
        self.owns_queues = False  # exclusive ones
        self.client_properties: dict[str, object] = {}
        self._wire = wire
        self._loopback = loopback
        self._state = "header"
        max_message_bytes = service.limits.max_message_bytes
        self._parser = Parser(
            frame_max_bytes=MIN_FRAME_MAX_BYTES,
            offered_frame_max_bytes=service.limits.frame_max_bytes,
            max_body_bytes=max_message_bytes,
            max_unfinished_bytes=2 * max_message_bytes,
        )
        self.transaction_bytes = 0  # published on channels in tx mode, and not committed
        self._waiting_bytes = 0  # the bodies in `_waiting`
        self._channel_max = service.limits.channel_max
        self._authentication_failure_close = False
        self._tell_blocked = False
        self._told_blocked = False
        self._publishes = False
        self._out: list[bytes] = []
        self._waiting: deque[ParserEvent] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ended_channels: set[int] = set()  # whose close-ok we wait for
        self._acknowledged: dict[QueueCursor, list[int]] = {}
        self._unconfirmed_bytes = 0
        self._unconfirmed_full = False
        now_ms = service.clock.monotonic_ms()
        self._opened_ms = now_ms
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self._closing_ms = 0.0

    # -- bytes in ------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """Whether more bytes may be fed. A connection that publishes is not read while the broker is short of space."""
        return (
            self._task is None
            and not self._unconfirmed_full
            and not (self.service.blocked is not None and self._publishes)
        )

    @property
    def held_bytes(self) -> int:
        """What this client has made the broker keep that is not complete, not taken up or not committed."""
        return self._parser.held_bytes + self._waiting_bytes + self.transaction_bytes

    @property
    def closed(self) -> bool:
        return self._state == "closed"

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        self._last_read_ms = self.service.clock.monotonic_ms()
        self.now_ms = self.service.clock.wall_ms()
        events = self._parser.feed(data)
        if self._waiting or self._task is not None:
            self._waiting.extend(events)
            self._waiting_bytes += _size_of(events)
        else:
            self._take_up(events)

    def _take_up(self, events: list[ParserEvent]) -> None:
        channels = self.channels
        for position, event in enumerate(events, 1):
            try:
                if isinstance(event, Publish):
                    channel = channels.get(event.channel)
                    if channel is not None:
                        channel.publish(event)
                        self._publishes = True
                    else:
                        self._no_channel(event.channel)
                elif isinstance(event, Ack):
                    channel = channels.get(event.channel)
                    if channel is not None:
                        channel.acknowledge(event.tag, event.multiple)
                    else:
                        self._no_channel(event.channel)
                else:
                    later = self._take_other(event)
                    if later is not None:
                        self._waiting.extendleft(reversed(events[position:]))
                        self._waiting_bytes = _size_of(self._waiting)
                        number = event.channel if isinstance(event, MethodFrame) else 0
                        self._start(later, number)
                        return
            except FrameError as error:
                self._fail(error, getattr(event, "channel", 0))
            except Refused as refused:
                self._fail(_frame_error(refused, event), getattr(event, "channel", 0))
            except UnknownTopicOrPartition as error:  # the queue went while it was being used
                self._fail(FrameError(codes.NOT_FOUND, str(error)), getattr(event, "channel", 0))
            except (QueueError, LogError) as error:
                self._fail(FrameError(codes.INTERNAL_ERROR, str(error)), 0)

    def _take_other(self, event: ParserEvent) -> Coroutine[object, object, None] | None:
        if isinstance(event, MethodFrame):
            if event.channel == 0:
                return self._connection_method(event.method)
            channel = self.channels.get(event.channel)
            if channel is None:
                self._method_without_channel(event)
                return None
            return operations.perform(channel, event.method)
        if isinstance(event, Nack):
            channel = self.channels.get(event.channel)
            if channel is None:
                self._no_channel(event.channel)
            else:
                channel.refuse(event.tag, event.multiple, event.requeue, 120)
        elif isinstance(event, Reject):
            channel = self.channels.get(event.channel)
            if channel is None:
                self._no_channel(event.channel)
            else:
                channel.refuse(event.tag, False, event.requeue, 90)
        elif isinstance(event, Heartbeat):
            pass
        elif isinstance(event, ProtocolHeader):
            self._begin(event)
        elif isinstance(event, Content):
            raise FrameError(
                codes.COMMAND_INVALID, f"{event.method.NAME} is not for clients to send", 60, event.method.METHOD_ID
            )
        elif isinstance(event, FrameError):
            raise event
        return None

    def _start(self, later: Coroutine[object, object, None], channel: int) -> None:
        self._task = asyncio.get_running_loop().create_task(self._carry_out(later, channel))

    async def _carry_out(self, later: Coroutine[object, object, None], channel: int) -> None:
        try:
            await later
        except FrameError as error:
            self._fail(error, channel)
        except Refused as refused:
            self._fail(FrameError(_CODES[refused.reason], refused.text), channel)
        except UnknownTopicOrPartition as error:  # the queue went while it was being used
            self._fail(FrameError(codes.NOT_FOUND, str(error)), channel)
        except (QueueError, LogError, TransactionError) as error:
            self._fail(FrameError(codes.INTERNAL_ERROR, str(error)), 0)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._complain("failed AMQP method", "a method failed", error=error)
            self._fail(FrameError(codes.INTERNAL_ERROR, "an internal error occurred"), 0)
        self._task = None
        if self._waiting:
            waiting, self._waiting = list(self._waiting), deque()
            self._waiting_bytes = 0
            self._take_up(waiting)
        if self.readable:
            self._wire.readable_again()

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _begin(self, header: ProtocolHeader) -> None:
        if not header.accepted:
            self.send(PROTOCOL_HEADER)
            self._end()
            return
        self._state = "start"
        self.send_method(0, handshake.start_method(self.service.cluster_name))

    def _connection_method(self, method: m.Method) -> Coroutine[object, object, None] | None:
        if isinstance(method, m.ConnectionClose):
            self._close_channels()
            self.send_method(0, m.ConnectionCloseOk())
            self._end()
            return None
        if isinstance(method, m.ConnectionCloseOk) and self._state == "closing":
            self._end()
            return None
        if self._state == "closing":
            return None
        expected = {"start": m.ConnectionStartOk, "tune": m.ConnectionTuneOk, "open": m.ConnectionOpen}
        wanted = expected.get(self._state)
        if wanted is not None and not isinstance(method, wanted):
            raise _unexpected(method)
        if isinstance(method, m.ConnectionStartOk) and self._state == "start":
            self._start_ok(method)
        elif isinstance(method, m.ConnectionTuneOk) and self._state == "tune":
            agreed = handshake.agree(self.limits, method)
            self._channel_max = agreed.channel_max
            self.frame_max_bytes = agreed.frame_max_bytes
            self.heartbeat_s = agreed.heartbeat_s
            self._state = "open"
        elif isinstance(method, m.ConnectionOpen) and self._state == "open":
            self._open(method.virtual_host)
        elif isinstance(method, m.ConnectionUpdateSecret):
            # There is nothing to renew in a password; clients that send this only want to hear that it was taken.
            self.send_method(0, m.ConnectionUpdateSecretOk())
        else:
            raise _unexpected(method)
        return None

    def _start_ok(self, method: m.ConnectionStartOk) -> None:
        properties = method.client_properties
        self.client_properties = dict(properties)
        capabilities = properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.notify_cancel = capabilities.get("consumer_cancel_notify") is True
            self._authentication_failure_close = capabilities.get("authentication_failure_close") is True
            self._tell_blocked = capabilities.get("connection.blocked") is True
        credentials = handshake.read_credentials(method.mechanism, method.response)
        user = self.service.accounts.login(credentials.user, credentials.password, loopback=self._loopback)
        if user is None:
            self._complain("refused login", f"login of user {credentials.user!r:.200} was refused")
            if not self._authentication_failure_close:
                self._end()
                return
            text = (
                f"Login was refused using authentication mechanism {method.mechanism}. "
                "For details see the broker logfile."
            )
            self._close_connection(FrameError(codes.ACCESS_REFUSED, text))
            return
        self.user = user.name
        self._state = "tune"
        self.send_method(0, handshake.tune_method(self.limits))

    def _open(self, name: str) -> None:
        vhost = self.service.vhosts.get(name)
        if vhost is None:
            raise FrameError(codes.NOT_ALLOWED, f"vhost {name} not found", 10, 40)
        if not self.service.accounts.may_enter(self.user, name):
            text = f"access to vhost '{name}' refused for user '{self.user}'"
            raise FrameError(codes.NOT_ALLOWED, text, 10, 40)
        self.vhost = vhost
        self.envelopes = self.service.envelopes_of(name)
        self._state = "running"
        self.send_method(0, m.ConnectionOpenOk())
        if self.service.blocked is not None:
            self.tell_blocked(self.service.blocked)

    def _fail(self, error: FrameError, channel: int) -> None:
        if self._state in {"closing", "closed"}:
            return
        number = error.channel or channel
        if number and self._state == "running" and error.reply_code in _CHANNEL_ERRORS:
            self._close_channel(number, error)
        else:
            self._close_connection(error)

    def _close_channel(self, number: int, error: FrameError) -> None:
        channel = self.channels.pop(number, None)
        if channel is None:
            return
        self._complain("closed channel", f"channel {number} closed: {error!s:.300}", level=logging.INFO)
        self.flush()
        channel.close()
        self._parser.forget_channel(number)
        self._ended_channels.add(number)
        text = _cut(error.reply_text)
        self.send_method(number, m.ChannelClose(error.reply_code, text, error.class_id, error.method_id))

    def _close_connection(self, error: FrameError) -> None:
        self._complain("closed AMQP connection", f"closing an AMQP connection: {error!s:.300}")
        self._close_channels()
        self._state = "closing"
        self._closing_ms = self.service.clock.monotonic_ms()
        self._forget_waiting()
        text = _cut(error.reply_text)
        self.send_method(0, m.ConnectionClose(error.reply_code, text, error.class_id, error.method_id))
        if self._parser.stopped:
            # Frames cannot be told apart any more, so close-ok will not be seen.
            self._end()

    def force_close(self, text: str) -> None:
        """The broker's wish: it shuts down, or an operator asked for it."""
        if self._state == "running":
            self._close_connection(FrameError(codes.CONNECTION_FORCED, text))
        else:
            self._end()

    def out_of_input(self) -> None:
        """The broker has no room for what all clients have begun to send, and this one has begun most of it."""
        if self._state == "running":
            error = FrameError(codes.RESOURCE_ERROR, "too much is begun and not finished on this connection")
            self._close_channels()
            self.send_method(0, m.ConnectionClose(error.reply_code, _cut(error.reply_text), 0, 0))
        self._end()

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _forget_input(self) -> None:
        """Nothing that the client has sent matters any more: let go of it now, not when the session is collected."""
        self._forget_waiting()
        self._parser.stop()

    def _complain(
        self, kind: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        self.service.complaints.add(kind, self.host, f"{text} (port {self.port})", level=level, error=error)

    def _end(self) -> None:
        self._state = "closed"
        self._forget_input()
        self._write()
        self._wire.close()

    def connection_lost(self) -> None:
        """The connection is gone, whoever ended it."""
        self._state = "closed"
        self._forget_input()
        self._out.clear()
        self._close_channels()
        # What waits for the disk is carried through: a queue half declared would be in nobody's hands.
        if self.owns_queues:
            self.service.queues.delete_owned(self)

    def _close_channels(self) -> None:
        self.flush()
        for channel in list(self.channels.values()):
            channel.close()
        self.channels.clear()

    # -- channels ------------------------------------------------------------------------------------------------

    def _method_without_channel(self, event: MethodFrame) -> None:
        method, number = event.method, event.channel
        if number in self._ended_channels:
            if isinstance(method, m.ChannelCloseOk):
                self._ended_channels.discard(number)
            elif isinstance(method, m.ChannelClose):  # both sides closed at once
                self._ended_channels.discard(number)
                self.send_method(number, m.ChannelCloseOk())
            return
        if self._state == "closing":
            return
        if self._state != "running":
            raise _unexpected(method)
        if not isinstance(method, m.ChannelOpen):
            self._no_channel(number)
            return
        if number > self._channel_max:
            text = f"channel ID {number} is larger than the negotiated maximum of {self._channel_max}"
            raise FrameError(codes.NOT_ALLOWED, text, 20, 10)
        self.channels[number] = Channel(self, number)
        self.send_method(number, m.ChannelOpenOk())

    def _no_channel(self, number: int) -> None:
        """Frames for a channel that ended by an error are ignored; for one that was never opened they are an error."""
        if number in self._ended_channels or self._state in {"closing", "closed"}:
            return
        raise FrameError(codes.CHANNEL_ERROR, "expected 'channel.open'" if number else "no method for channel 0")

    def channel_closed(self, channel: Channel) -> None:
        """The client closed it."""
        self.flush()
        del self.channels[channel.number]
        channel.close()
        self._parser.forget_channel(channel.number)
        self.send_method(channel.number, m.ChannelCloseOk())

    # -- what channels ask for -------------------------------------------------------------------------------------

    def check_access(self, access: Access, kind: str, name: str, default_name: str = "") -> None:
        if not self.service.accounts.allows(self.user, self.vhost.name, access, name or default_name):
            text = f"access to {kind} '{name}' in vhost '{self.vhost.name}' refused for user '{self.user}'"
            raise Refused(Reason.ACCESS_REFUSED, text)

    def settle_acknowledged(self, channel: Channel, taken: list[tuple[int, Delivery]]) -> None:
        """Acknowledge at the end of the turn, together with all others of this connection."""
        acknowledged = self._acknowledged
        if not acknowledged:
            self.service.turn.collect(self._settle)
        got = 0
        for _, delivery in taken:
            offsets = acknowledged.get(delivery[4])
            if offsets is None:
                acknowledged[delivery[4]] = [delivery[0]]
            else:
                offsets.append(delivery[0])
            consumer = delivery[5]
            if isinstance(consumer, Consumer):
                consumer.unsettled -= 1
            else:
                got += 1
        channel.prefetch.freed(len(taken) - got)

    def _settle(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        for cursor, offsets in acknowledged.items():
            cursor.acknowledge(offsets)

    def flush(self) -> None:
        """Carry out what this turn has collected so far."""
        self._settle()
        self.publishing.flush()

    def note_unconfirmed(self, more_bytes: int) -> None:
        """So many bytes more, or fewer, of this connection's publications wait to be stored."""
        self._unconfirmed_bytes += more_bytes
        full = self._unconfirmed_bytes > self.limits.max_unconfirmed_bytes
        if full != self._unconfirmed_full:
            self._unconfirmed_full = full
            if not full and self.readable:
                self._wire.readable_again()

    def deliver_reply(self, channel: Channel, envelope: Envelope, body: bytes) -> None:
        tag = channel.next_tag
        channel.next_tag += 1
        content = [(envelope.exchange, envelope.routing_key, False, envelope.properties, body)]
        raw_tag = (channel.reply_tag or "").encode()
        self.send(encode_deliveries(channel.number, raw_tag, tag, content, self.frame_max_bytes))

    def manage(self, channel: Channel, envelope: Envelope, body: bytes) -> None:
        """A management request: its answer goes to the direct reply-to address that it names."""

        async def answer() -> None:
            reply = await self.service.management.answer(self.user, self.vhost, body)
            waiting = self.replies.get(envelope.reply_to or "")
            if waiting is not None and waiting.open:
                decoded = decode_properties(envelope.properties)
                properties = encode_properties(Properties("application/json", correlation_id=decoded.correlation_id))
                waiting.session.deliver_reply(waiting, Envelope("", envelope.reply_to or "", properties), reply)

        self.service.messaging.spawn(answer())

    # -- bytes out -----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if not self._out:
            self.service.turn.output(self._write)
        self._out.append(data)

    def send_method(self, channel: int, method: m.Method) -> None:
        self.send(encode_method(channel, method))

    def _write(self) -> None:
        out, self._out = self._out, []
        if out:
            self._last_write_ms = self.service.clock.monotonic_ms()
            self._wire.write(out[0] if len(out) == 1 else b"".join(out))

    def set_writable(self, writable: bool) -> None:
        self.writable = writable
        if writable:
            for channel in self.channels.values():
                channel.wake()

    # -- time and space --------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Called about once a second: heartbeats, and the time-outs of opening and closing."""
        if self._state == "closing":
            if now_ms - self._closing_ms > self.limits.close_timeout_ms:
                self._end()
        elif self._state != "running":
            if now_ms - self._opened_ms > self.limits.handshake_timeout_ms:
                self._end()
        elif self.heartbeat_s:
            interval_ms = self.heartbeat_s * 1000
            if now_ms - self._last_read_ms > 2 * interval_ms and self.readable:
                self._complain("missed heartbeats", f"missed heartbeats, timeout: {self.heartbeat_s}s")
                self._end()
            elif now_ms - self._last_write_ms >= interval_ms / 2:
                self.send(HEARTBEAT_FRAME)

    def tell_blocked(self, reason: str | None) -> None:
        """The broker is short of space, or no longer."""
        if self._state != "running":
            return
        if reason is not None and self._tell_blocked and not self._told_blocked:
            self._told_blocked = True
            self.send_method(0, m.ConnectionBlocked(_cut(reason)))
        elif reason is None and self._told_blocked:
            self._told_blocked = False
            self.send_method(0, m.ConnectionUnblocked())
        if reason is None and self.readable:
            self._wire.readable_again()


def _size_of(events: Iterable[ParserEvent]) -> int:
    return sum(len(event.body) + len(event.properties) for event in events if isinstance(event, Publish | Content))


def _unexpected(method: m.Method) -> FrameError:
    text = f"unexpected method {method.NAME}"
    return FrameError(codes.COMMAND_INVALID, text, method.CLASS_ID, method.METHOD_ID)


def _frame_error(refused: Refused, event: ParserEvent) -> FrameError:
    class_id, method_id = (60, 40) if isinstance(event, Publish) else (0, 0)
    if isinstance(event, MethodFrame):
        class_id, method_id = event.method.CLASS_ID, event.method.METHOD_ID
    return FrameError(_CODES[refused.reason], refused.text, class_id, method_id)


def _cut(text: str) -> str:
    """A reply text is a short string."""
    raw = text.encode()
    return text if len(raw) <= _MAX_REPLY_TEXT_BYTES else raw[:_MAX_REPLY_TEXT_BYTES].decode("utf-8", "ignore")
