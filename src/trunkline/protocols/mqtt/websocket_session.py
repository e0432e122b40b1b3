"""MQTT inside WebSocket frames: between a connection and its session, and without a socket.

To the connection it is the session, to the session it is the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.protocols.listener.session import Wire
from trunkline.protocols.mqtt.session import ClientConnection
from trunkline.protocols.mqtt.websocket import GOING_AWAY, Opcode, WebSocket, frame_header

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.hub import Hub


class WebSocketSession:
    __slots__ = ("_hub", "_session", "_websocket", "_wire")

    def __init__(self, hub: Hub, wire: Wire) -> None:
        self._hub = hub
        self._wire = wire
        self._websocket = WebSocket(hub.limits.max_packet_bytes)
        self._session = ClientConnection(hub, self, wire.host)

    # -- for the connection ----------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        return self._session.settled

    @property
    def held_bytes(self) -> int:
        return self._session.held_bytes + self._websocket.held_bytes

    def read(self, data: memoryview) -> None:
        session, websocket = self._session, self._websocket
        self._hub.turn.hold()
        try:
            payloads = websocket.receive(bytes(data))
            output = websocket.take_output()
            if output:
                self._wire.write(output)
            for payload in payloads:
                session.receive(payload)
            if websocket.closed:
                self._wire.close()
        finally:
            self._hub.turn.let_go(unfinished=session.in_packet)

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()

    def out_of_input(self) -> None:
        self._session.out_of_input()

    def shut_down(self) -> None:
        self._session.shut_down()

    def lost(self) -> None:
        self._session.lost()

    # -- for the session -------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._websocket.open and not self._websocket.closed:
            self._wire.write(frame_header(Opcode.BINARY, len(data)) + data)

    def close(self) -> None:
        goodbye = self._websocket.say_goodbye(GOING_AWAY)
        if goodbye:
            self._wire.write(goodbye)
        self._wire.close()

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def unsent_bytes(self) -> int:
        return self._wire.unsent_bytes()

    def crowded(self) -> bool:
        return self._wire.crowded()
