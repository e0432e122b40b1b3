"""The MQTT listeners, TCP and WebSocket: the only file of this protocol with a socket in it.

All connections share one scratch buffer to read into, since the read and its handling happen without a pause between
them; an idle connection owns no buffer, no task and no timer. One timer ticks every second for all of them: keep-alive,
connections that never sent CONNECT, expiry, wills. What a client has begun to send counts against the broker's input budget.

Closing: the last packet says why, so it must arrive. A socket that is closed while input is unread resets the connection,
and the client may then lose what was sent to it; so our side is closed first, and what still comes is discarded until the
client closes too, for `_LINGER_S` at most.

Writing: a session writes once per turn. A client that does not take it is noticed by the transport (`pause_writing`), and
its session then takes nothing more from the log; see `session.congested` for QoS 0.
"""

from __future__ import annotations

import asyncio
import logging

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.mapping import Mapping
from trunkline.broker.state.retained import RetainedMessages
from trunkline.protocols.listener import Listener, ServedConnection
from trunkline.protocols.mqtt.access import Access
from trunkline.protocols.mqtt.exchange_bindings import ExchangeBindings
from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.link import Phase
from trunkline.protocols.mqtt.session import Session
from trunkline.protocols.mqtt.session_journal import SessionJournal
from trunkline.protocols.mqtt.sessions import Sessions
from trunkline.protocols.mqtt.sources import Sources
from trunkline.protocols.mqtt.statistics import Statistics
from trunkline.protocols.mqtt.subscription import Routes
from trunkline.protocols.mqtt.websocket import GOING_AWAY, Opcode, WebSocket, frame_header

logger = logging.getLogger(__name__)

_SCRATCH_BYTES = 256 << 10
_WRITE_HIGH_WATER_BYTES = 1 << 20
_TICK_MS = 1_000
_LINGER_S = 2.0


class MqttServer:
    """Everything of MQTT: sessions, retained messages, and the listeners."""

    def __init__(
        self,
        broker: BrokerCore,
        *,
        limits: MqttLimits | None = None,
        mapping: Mapping | None = None,
        anonymous: bool = True,
    ) -> None:
        self.broker = broker
        self.limits = limits or MqttLimits()
        mapping = mapping or Mapping()
        self.retained = RetainedMessages(
            broker.store,
            broker.clock,
            max_messages=self.limits.max_retained_messages,
            max_bytes=self.limits.max_retained_bytes,
        )
        sources = Sources(broker, mapping, self.limits.max_packet_bytes)
        self.hub = Hub(
            broker.store,
            broker.clock,
            self.limits,
            Routes(mapping, self.limits),
            sources,
            self.retained,
            SessionJournal(broker.store, broker.clock),
            ExchangeBindings(broker.messaging),
            Access(broker.accounts, anonymous=anonymous),
            broker.complaints,
        )
        self.sessions = Sessions(self.hub)
        sources.changed = self.hub.source_changed
        sources.dropped = self.sessions.source_dropped
        self.statistics = Statistics(self.hub, self.limits.sys_interval_ms)
        self.connections: dict[Connection, None] = {}
        self.scratch = bytearray(_SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self._listeners: list[Listener] = []
        self._tick_handle: asyncio.TimerHandle | None = None
        self._started = False
        self._unconnected: dict[Connection, float] = {}  # since when, oldest first

    async def start(self) -> None:
        """Fold the internal topics; listeners come after that."""
        if not self._started:
            self._started = True
            await self.retained.start()
            await self.sessions.start()
            self._tick()

    async def listen(self, host: str, port: int, *, websocket: bool = False) -> tuple[str, int]:
        await self.start()
        kind = WebSocketConnection if websocket else Connection
        listener = Listener(self.broker, lambda: kind(self), self._refusal)
        self._listeners.append(listener)
        return await listener.start(host, port)

    async def close(self) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.shut_down()
        await self.hub.close()
        self.hub.sources.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._tick_handle = asyncio.get_running_loop().call_later(_TICK_MS / 1000, self._tick)
        try:
            self.tick()
        except Exception:
            logger.exception("the tick failed")

    def tick(self) -> None:
        """What has to be looked at from time to time."""
        hub = self.hub
        hub.keep_alive.expire()
        self.sessions.expire()
        self.sessions.mark_seen()
        hub.sources.discover()
        self.statistics.tick()
        before_ms = hub.clock.monotonic_ms() - self.limits.connect_timeout_ms
        while self._unconnected:
            connection, since_ms = next(iter(self._unconnected.items()))
            if since_ms > before_ms and not connection.settled:
                break
            del self._unconnected[connection]
            if not connection.settled:
                connection.abort()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _refusal(self) -> str:
        here = len(self.connections) + sum(listener.arriving for listener in self._listeners)
        if here < self.limits.max_connections:
            return ""
        self.hub.counters.connections_refused += 1
        return f"mqtt_max_connections={self.limits.max_connections} is reached"

    def admit(self, connection: Connection) -> None:
        counters = self.hub.counters
        self.connections[connection] = None
        self._unconnected[connection] = self.hub.clock.monotonic_ms()
        counters.connections += 1
        counters.connected = len(self.connections)
        counters.connected_maximum = max(counters.connected_maximum, counters.connected)

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._unconnected.pop(connection, None)
        self.hub.counters.connected = len(self.connections)


class Connection(ServedConnection):
    """One client over TCP."""

    __slots__ = ("_lingering", "_server", "_session", "_unsent_bytes")

    holding = "an MQTT connection"

    def __init__(self, server: MqttServer) -> None:
        super().__init__(server.broker)
        self._server = server
        self._lingering = False
        self._session: Session | None = None
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._server.admit(self)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES, low=_WRITE_HIGH_WATER_BYTES // 4)
        self._session = Session(self._server.hub, self, self.host)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.forget(self)
        self._server.hub.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        if self._session is not None:
            self._session.lost()
            self._session = None

    @property
    def settled(self) -> bool:
        return self._session is None or self._session.phase > Phase.AUTHENTICATING

    def shut_down(self) -> None:
        if self._session is not None:
            self._session.shut_down()
            self._session = None  # its session stays open on disk: the connection is lost with the broker

    def let_go(self) -> None:
        self._held_bytes = 0
        if self._session is not None:
            self._session.out_of_input()
            self._session = None  # with what it holds, though the connection lingers

    # -- in ------------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        if session is not None and not self._lingering:
            hub = self._server.hub
            hub.read_begins()
            try:
                self._received(session, self._server.scratch_view[:nbytes])
            except Exception as error:
                hub.complaints.add("failed MQTT packet", self.host, "closing an MQTT connection", error=error)
                self.abort()
            finally:
                hub.read_ends(in_packet=session.in_packet)
            held_bytes = self._input_bytes(session)
            if held_bytes != self._held_bytes:
                self.hold_input(held_bytes)

    def _input_bytes(self, session: Session) -> int:
        return session.held_bytes

    def _received(self, session: Session, data: memoryview) -> None:
        session.receive(data)

    def eof_received(self) -> bool:
        return False

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._lingering:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._session is not None:
            self.hold_input(self._input_bytes(self._session))
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- out -----------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._lingering:
            transport.write(data)
            if self._unsent_bytes:
                self._count_unsent(transport)

    def close(self) -> None:
        """Close once everything is sent; at once when the client does not take it, or it would never end."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._lingering:
            return
        if self._session is not None and self._session.paused:
            transport.abort()
            return
        if transport.get_write_buffer_size():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
            return
        self._lingering = True
        transport.resume_reading()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _count_unsent(self, transport: asyncio.Transport) -> None:
        now_bytes = transport.get_write_buffer_size()
        self._server.hub.unsent_bytes += now_bytes - self._unsent_bytes
        self._unsent_bytes = now_bytes

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()
        if self._transport is not None:
            self._count_unsent(self._transport)

    def resume_writing(self) -> None:
        self._server.hub.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        if self._session is not None:
            self._session.resume_writing()


class WebSocketConnection(Connection):
    """One client over WebSocket: the same bytes, in frames."""

    __slots__ = ("_websocket",)

    def __init__(self, server: MqttServer) -> None:
        super().__init__(server)
        self._websocket = WebSocket(server.limits.max_packet_bytes)

    def _received(self, session: Session, data: memoryview) -> None:
        websocket = self._websocket
        payloads = websocket.receive(bytes(data))
        output = websocket.take_output()
        if output:
            super().write(output)
        for payload in payloads:
            session.receive(payload)
        if websocket.closed:
            super().close()

    def _input_bytes(self, session: Session) -> int:
        return session.held_bytes + self._websocket.held_bytes

    def write(self, data: bytes) -> None:
        if self._websocket.open and not self._websocket.closed:
            super().write(frame_header(Opcode.BINARY, len(data)) + data)

    def close(self) -> None:
        goodbye = self._websocket.say_goodbye(GOING_AWAY)
        if goodbye:
            super().write(goodbye)
        super().close()
