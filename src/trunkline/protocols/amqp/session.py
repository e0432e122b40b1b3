"""An AMQP connection as a state machine: bytes in, bytes out, no socket.

Its states, those of its channels, and what each method does in each of them are the tables of `states`; this is what goes
through them.

Rules kept:

1. Events are taken up in the order of arrival. A method that must wait (a queue's files, an fsync) holds up those behind
   it on this connection; what has been read stays in `_backlog`, and the server does not read on (`readable`).
2. A soft error (codes 311 to 406) closes the channel on which it happened: what it sends is ignored until
   channel.close-ok. Every other error closes the connection. Both carry RabbitMQ's code and text.
3. Output is collected and written once per turn, in the order in which it came about.
4. When the connection goes, its channels give back what they hold and its exclusive queues are deleted.
5. A client that does not take its deliveries gets no more once `write_high_water_bytes` wait for it, but its
   acknowledgements are still read: it may be sending them before it reads on. Only when answers to what it asks for come
   to `_STOP_READING_FACTOR` times as much is it not read either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

from trunkline.broker.administration.connections import About
from trunkline.broker.messaging.settlements import Acknowledgements
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue import Delivery
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.backlog import Backlog
from trunkline.protocols.amqp.channel import PROTOCOL, Channel, Later
from trunkline.protocols.amqp.codec import encode_method
from trunkline.protocols.amqp.errors import FrameError
from trunkline.protocols.amqp.failures import FAILURES, error_of, short_text
from trunkline.protocols.amqp.flow import Flow
from trunkline.protocols.amqp.frames import (
    MIN_FRAME_MAX_BYTES,
    Ack,
    Content,
    Heartbeat,
    MethodFrame,
    Nack,
    ProtocolHeader,
    Publish,
    Reject,
)
from trunkline.protocols.amqp.handshake import offer
from trunkline.protocols.amqp.mapping import Envelopes
from trunkline.protocols.amqp.parser import Parser, ParserEvent
from trunkline.protocols.amqp.pulse import Pulse
from trunkline.protocols.amqp.service import Service
from trunkline.protocols.amqp.states import (
    CONNECTIONS,
    HEADER_STEP,
    ChannelState,
    ConnectionState,
    Fault,
    Step,
    method_of,
    row_of_channel,
)
from trunkline.protocols.listener.session import Wire
from trunkline.security.limits import MAX_CHANNELS, MAX_MESSAGE_RATE, USER, VHOST
from trunkline.security.principal import Principal, anonymous
from trunkline.security.rules import Operation
from trunkline.security.users import Access

_ENDING: Final = frozenset({ConnectionState.CLOSING, ConnectionState.CLOSED})
_STOP_READING_FACTOR: Final = 4
DEFAULT_EXCHANGE: Final = "amq.default"  # what permissions call it


class Session:
    def __init__(self, service: Service, wire: Wire) -> None:
        self.service = service
        self.host = wire.host
        self.certificate = wire.certificate
        self.port = wire.port
        self.limits = service.limits
        self.publishing = service.publishing
        self.replies = service.replies
        self.principal: Principal = anonymous(wire.host)
        self.vhost = VirtualHost("")  # until connection.open
        self.envelopes = Envelopes()
        self.frame_max_bytes = service.limits.frame_max_bytes
        self.heartbeat_s = 0
        self.channel_max = service.limits.channel_max
        self.notify_cancel = False  # the client understands basic.cancel from the server
        self.notify_blocked = False  # and connection.blocked
        self.client_properties: dict[str, str] = {}  # what it says of itself, for people
        self.channels: dict[int, Channel] = {}
        self.writable_exchanges: set[str] = set()  # that this user may publish to, as far as was asked
        self.acknowledgements = Acknowledgements(service.turn.collect)
        self.flow = Flow(self)
        self.writable = True
        self.now_ms = service.clock.wall_ms()
        self.owns_queues = False  # exclusive ones
        self.state = ConnectionState.HEADER
        self._wire = wire
        max_message_bytes = service.limits.max_message_bytes
        self._parser = Parser(
            frame_max_bytes=MIN_FRAME_MAX_BYTES,
            offered_frame_max_bytes=service.limits.frame_max_bytes,
            max_body_bytes=max_message_bytes,
            max_unfinished_bytes=2 * max_message_bytes,
        )
        self.transaction_bytes = 0  # published on channels in tx mode, and not committed
        self._out: list[bytes] = []
        self._backlog = Backlog()
        self._task: asyncio.Task[None] | None = None
        self._closing_channels: set[int] = set()
        self._present: tuple[tuple[str, str], ...] = ()  # where this connection is counted
        self._rated = False  # whether the user has a limit of messages a second
        self._resting: asyncio.TimerHandle | None = None  # while that limit is exceeded
        self._pulse = Pulse(service.clock.monotonic_ms())

    # -- bytes in ------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """Whether more bytes may be fed."""
        return self._task is None and self.flow.open and self._resting is None

    def read_on(self) -> None:
        """Something that kept this connection from being read has ended."""
        if self._may_read():
            self._wire.resume_reading()

    def _may_read(self) -> bool:
        if self.writable:
            return self.readable
        most_bytes = _STOP_READING_FACTOR * self.limits.write_high_water_bytes
        return self.readable and self._wire.unsent_bytes() < most_bytes

    @property
    def user(self) -> str:
        return self.principal.name

    @property
    def held_bytes(self) -> int:
        """What this client has made the broker keep that is not complete, not taken up or not committed."""
        return self._parser.held_bytes + self._backlog.size_bytes + self.transaction_bytes

    @property
    def closed(self) -> bool:
        return self.state is ConnectionState.CLOSED

    def read(self, data: memoryview) -> None:
        turn = self.service.turn
        turn.hold()
        try:
            self.receive(data)
        finally:
            turn.let_go()
        if not self._may_read():
            self._wire.pause_reading()

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        self._pulse.read_ms = self.service.clock.monotonic_ms()
        self.now_ms = self.service.clock.wall_ms()
        events = self._parser.feed(data)
        if self._rated:
            self._slow_down(events)
        if self._task is not None:
            self._backlog.add(events)
        else:
            self._take_up(events)

    def _take_up(self, events: list[ParserEvent]) -> None:
        channels = self.channels
        for position, event in enumerate(events, 1):
            try:
                # The tables' steps for these two on an open channel, without looking them up.
                if isinstance(event, Publish):
                    channel = channels.get(event.channel)
                    if channel is not None:
                        channel.publish(event)
                        self.flow.publishes = True
                        continue
                elif isinstance(event, Ack):
                    channel = channels.get(event.channel)
                    if channel is not None:
                        channel.acknowledge(event)
                        continue
                later = self._take_other(event)
            except FAILURES as failure:
                self._fail(error_of(failure, method_of(event)), getattr(event, "channel", 0))
            else:
                if later is not None:
                    self._backlog.add(events[position:])
                    carried = self._carry_out(later, getattr(event, "channel", 0), method_of(event))
                    self._task = asyncio.get_running_loop().create_task(carried)
                    return

    def _take_other(self, event: ParserEvent) -> Later:
        if isinstance(event, MethodFrame):
            return self._step(event.channel, type(event.method), event.method)
        if isinstance(event, Publish | Ack | Nack | Reject | Content):
            return self._step(event.channel, method_of(event), event)
        if isinstance(event, ProtocolHeader):
            return self._take_step(HEADER_STEP, event)
        if isinstance(event, FrameError):
            raise event
        assert isinstance(event, Heartbeat)
        return None

    async def _carry_out(self, later: Coroutine[object, object, None], number: int, method: type[m.Method]) -> None:
        try:
            await later
        except FAILURES as failure:
            self._fail(error_of(failure, method), number)
        except Exception as error:
            self.complain("failed AMQP method", "a method failed", error=error)
            self._fail(FrameError(codes.INTERNAL_ERROR, "an internal error occurred"), 0)
        self._task = None
        self._take_up(self._backlog.take())
        self.read_on()

    # -- the states ------------------------------------------------------------------------------------------------

    def channel_state(self, number: int) -> ChannelState:
        if number in self.channels:
            return ChannelState.OPEN
        return ChannelState.CLOSING if number in self._closing_channels else ChannelState.UNOPENED

    def _step(self, number: int, method: type[m.Method], taken: object) -> Later:
        """Do what the tables say of this method, which came with `taken`."""
        if number == 0:
            cell = CONNECTIONS[self.state][method]
            if isinstance(cell, Fault):
                raise cell.error(method)
            return self._take_step(cell, taken)
        step = row_of_channel(self.state, self.channel_state(number))[method]
        if isinstance(step, Fault):
            raise step.error(method)
        later = None
        if step.act is not None:
            if not step.gathered:
                self.flush()
            later = step.act(self.channels[number], taken)
        if step.then is not None:
            self._move_channel(number, step.then)
        if step.answer is not None:
            self.send_method(number, step.answer())
        return later

    def _take_step(self, step: Step[ConnectionState], taken: object) -> Later:
        before = self.state
        later = None if step.act is None else step.act(self, taken)
        if step.then is not None and self.state is before:  # else the act has ended the connection
            self._move(step.then)
        if step.answer is not None:
            self.send_method(0, step.answer())
        return later

    def logged_in(self, principal: Principal) -> None:
        """The client is who it says it is; it may be gone meanwhile."""
        if self.state is ConnectionState.LOGIN:
            self.principal = principal
            self._move(ConnectionState.TUNE)
            offer(self)

    def _move(self, then: ConnectionState) -> None:
        self.state = then
        if then is ConnectionState.RUNNING:
            if self.service.blocked is not None:
                self.tell_blocked(self.service.blocked)
        elif then is ConnectionState.CLOSING:
            self._pulse.closing_ms = self.service.clock.monotonic_ms()
            self._backlog.take()
        elif then is ConnectionState.CLOSED:
            self._forget_input()
            self._write()
            self._wire.close()

    def _move_channel(self, number: int, then: ChannelState) -> None:
        if then is ChannelState.OPEN:
            if number > self.channel_max:
                text = f"channel ID {number} is larger than the negotiated maximum of {self.channel_max}"
                raise FrameError(codes.NOT_ALLOWED, text, 20, 10)
            most = self.service.user_limits.of(USER, self.user, MAX_CHANNELS)
            if most is not None and self.service.channels[self.user] >= most:
                text = f"number of channels opened for user '{self.user}' has reached the maximum allowed user limit of ({most})"
                raise FrameError(codes.NOT_ALLOWED, text, 20, 10)
            self.channels[number] = Channel(self, number)
            self.service.channels[self.user] += 1
            return
        channel = self.channels.pop(number, None)
        if channel is not None:
            self.service.channels[self.user] -= 1
            self.flush()
            channel.close()
            self._parser.forget_channel(number)
        if then is ChannelState.CLOSING:
            self._closing_channels.add(number)
        else:
            self._closing_channels.discard(number)

    # -- errors, and the end ---------------------------------------------------------------------------------------

    def _fail(self, error: FrameError, channel: int) -> None:
        if self.state in _ENDING:
            self._end_if_unreadable()
            return
        number = error.channel or channel
        if not number or self.state is not ConnectionState.RUNNING or not error.soft:
            self._close_connection(error)
        elif number in self.channels:
            self.complain("closed channel", f"channel {number} closed: {error!s:.300}", level=logging.INFO)
            self._move_channel(number, ChannelState.CLOSING)
            text = short_text(error.reply_text)
            self.send_method(number, m.ChannelClose(error.reply_code, text, error.class_id, error.method_id))

    def _close_connection(self, error: FrameError) -> None:
        self.complain("closed AMQP connection", f"closing an AMQP connection: {error!s:.300}")
        self.close_channels()
        self._move(ConnectionState.CLOSING)
        self._send_close(error)
        self._end_if_unreadable()

    def _end_if_unreadable(self) -> None:
        """Frames cannot be told apart after some errors: then close-ok would not be seen."""
        if self.state is ConnectionState.CLOSING and self._parser.stopped:
            self.end()

    def _send_close(self, error: FrameError) -> None:
        text = short_text(error.reply_text)
        self.send_method(0, m.ConnectionClose(error.reply_code, text, error.class_id, error.method_id))

    def force_close(self, text: str) -> None:
        """The broker's wish: it shuts down, or an operator asked for it."""
        if self.state is ConnectionState.RUNNING:
            self._close_connection(FrameError(codes.CONNECTION_FORCED, text))
        else:
            self.end()

    def about(self) -> About | None:
        if self.state is ConnectionState.HEADER:
            return None
        channels = self.channels.values()
        details: dict[str, object] = {
            "state": self.state.value,
            "virtual_host": self.vhost.name,
            "channels": len(channels),
            "consumers": sum(len(channel.consumers) for channel in channels),
            "unacknowledged": sum(len(channel.unsettled) for channel in channels),
            "channel_max": self.channel_max,
            "frame_max": self.frame_max_bytes,
            "heartbeat_s": self.heartbeat_s,
            "client_properties": self.client_properties,
            "channel_details": [channel.about() for channel in channels],
        }
        return About("AMQP 0-9-1", self.principal, details)

    def shut_down(self) -> None:
        self.force_close("broker forced connection closure with reason 'shutdown'")

    def out_of_input(self) -> None:
        if self.state is ConnectionState.RUNNING:
            self.close_channels()
            self._send_close(FrameError(codes.RESOURCE_ERROR, "too much is begun and not finished on this connection"))
        self.end()

    def end(self) -> None:
        """Send what is to be sent, and close."""
        self._move(ConnectionState.CLOSED)

    def _forget_input(self) -> None:
        """Nothing that the client has sent matters any more: let go of it now, not when the session is collected."""
        self._backlog.take()
        self._parser.stop()

    def complain(
        self, kind: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        self.service.complaints.add(kind, self.host, f"{text} (port {self.port})", level=level, error=error)

    def lost(self) -> None:
        """The connection is gone, whoever ended it."""
        self.state = ConnectionState.CLOSED
        for place in self._present:
            self.service.present[place] -= 1
        self._present = ()
        if self._resting is not None:
            self._resting.cancel()
        self._forget_input()
        self._out.clear()
        self.close_channels()
        # What waits for the disk is carried through: a queue half declared would be in nobody's hands.
        if self.owns_queues:
            self.service.queues.delete_owned(self)

    def close_channels(self) -> None:
        self.flush()
        for channel in list(self.channels.values()):
            channel.close()
        self.service.channels[self.user] -= len(self.channels)
        self.channels.clear()

    def entered(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self._present = ((VHOST, vhost.name), (USER, self.user))
        for place in self._present:
            self.service.present[place] += 1
        self._look_at_limits()

    def _look_at_limits(self) -> None:
        self._rated = self.service.user_limits.of(USER, self.user, MAX_MESSAGE_RATE) is not None

    def _slow_down(self, events: list[ParserEvent]) -> None:
        """Read no more for as long as the user has sent too much."""
        count = sum(isinstance(event, Publish) for event in events)
        wait_ms = self.service.user_limits.rate_wait_ms(self.user, count, self.service.clock.monotonic_ms())
        if wait_ms and self._resting is None:
            self._resting = asyncio.get_running_loop().call_later(wait_ms / 1000, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.read_on()

    # -- what channels ask for -------------------------------------------------------------------------------------

    def check_access(self, access: Access, kind: str, name: str, operation: Operation | None = None) -> None:
        shown = name if name or kind == "queue" else DEFAULT_EXCHANGE
        self.service.access.check_vhost(
            self.principal, self.vhost.name, access, shown, kind, operation, protocol=PROTOCOL
        )

    def check_key(self, access: Access, exchange: str, routing_key: str) -> None:
        control = self.service.access
        info = self.vhost.exchanges.get(exchange)
        if info is None or control.open:
            return
        if info.routing_kind == "topic":
            control.check_key(self.principal, self.vhost.name, exchange, access, routing_key, protocol=PROTOCOL)

    def access_changed(self) -> None:
        """What users may do has changed: publications are checked anew, and who may consume no more is told so."""
        self.writable_exchanges.clear()
        self._look_at_limits()
        for channel in self.channels.values():
            for consumer in list(channel.consumers.values()):
                queue = consumer.queue
                if not self.service.access.allows_vhost(self.principal, queue.vhost, Access.READ, queue.name):
                    queue.remove_consumer(consumer)
                    channel.consumer_cancelled(consumer)

    def note_transaction(self, more_bytes: int) -> None:
        self.transaction_bytes += more_bytes

    def take_deliveries(self, channel: int, tags: list[int]) -> list[Delivery]:
        found = self.channels.get(channel)
        return [] if found is None else found.surrender(tags)

    def flush(self) -> None:
        """Carry out what this turn has collected so far."""
        self.acknowledgements.carry_out()
        self.publishing.flush()

    # -- bytes out -----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """To be written at the end of the turn. What is answered late, when the connection is closed, goes nowhere."""
        if self.state is ConnectionState.CLOSED:
            return
        if not self._out:
            self.service.turn.output(self._write)
        self._out.append(data)

    def send_method(self, channel: int, method: m.Method) -> None:
        self.send(encode_method(channel, method))

    def _write(self) -> None:
        out, self._out = self._out, []
        if out:
            self._pulse.written_ms = self.service.clock.monotonic_ms()
            self._wire.write(out[0] if len(out) == 1 else b"".join(out))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for channel in self.channels.values():
            channel.wake()
        self.read_on()

    # -- time and space --------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Called about once a second."""
        self._pulse.tick(self, now_ms)

    def tell_blocked(self, reason: str | None) -> None:
        """The broker is short of space, or (None) has enough again."""
        if self.state is ConnectionState.RUNNING:
            self.flow.tell_blocked(reason)
            if not self._may_read():
                self._wire.pause_reading()
