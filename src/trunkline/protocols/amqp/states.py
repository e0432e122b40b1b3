"""The states of an AMQP connection and of its channels, and what each method does in each of them.

    connection   the client may send                    then
    HEADER       AMQP 0 0 9 1                           → START    (anything else: our header, and closed)
    START        connection.start-ok                    → LOGIN
    LOGIN        nothing that is taken up               → TUNE     (when the password is checked; or the end)
    TUNE         connection.tune-ok                     → OPEN
    OPEN         connection.open                        → RUNNING
    RUNNING      whatever its channels' states allow
    CLOSING      connection.close-ok; all else ignored  → CLOSED   (after an error, told by connection.close)
    CLOSED       nothing

    channel      the client may send                    then
    UNOPENED     channel.open                           → OPEN
    OPEN         channel.close                          → UNOPENED (and every method that one calls on a channel)
    CLOSING      channel.close-ok; all else ignored     → UNOPENED (after an error, told by channel.close)

A client may send connection.close in every state but the last. What it sends in a wrong state is a `Fault`, by which the
connection ends. While a channel is open, the frames of a message come one after the other; the parser sees to that
(`parser.TAKEN_FRAMES`), and hands on whole messages.

The tables are complete: each state has a `Step` or a `Fault` for every method there is. They drive the session
(`Session._step`), in this order: `act` is called, which may refuse; the state becomes `then`; `answer` is sent. What comes
once per message takes a short cut there, when its channel is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from trunkline.protocols.amqp import declarations, handshake, operations
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.channel import Channel, Later
from trunkline.protocols.amqp.errors import CHANNEL_ERROR, COMMAND_INVALID, UNEXPECTED_FRAME, FrameError
from trunkline.protocols.amqp.frames import Ack, Content, MethodFrame, Nack, Publish, Reject
from trunkline.protocols.amqp.parser import ParserEvent

# Events that the parser does not make of a method's declaration, as they come once per message.
_METHODS: Final[dict[type[ParserEvent], type[m.Method]]] = {
    Publish: m.BasicPublish,
    Ack: m.BasicAck,
    Nack: m.BasicNack,
    Reject: m.BasicReject,
}


def method_of(event: ParserEvent) -> type[m.Method]:
    """The method that came; `Method` itself for what is none."""
    if isinstance(event, MethodFrame | Content):
        return type(event.method)
    return _METHODS.get(type(event), m.Method)


class ConnectionState(Enum):
    HEADER = "header"
    START = "start"
    LOGIN = "login"
    TUNE = "tune"
    OPEN = "open"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class ChannelState(Enum):
    UNOPENED = "unopened"
    OPEN = "open"
    CLOSING = "closing"


State = TypeVar("State", ConnectionState, ChannelState)


class Step(NamedTuple, Generic[State]):
    """What is right. `then` None: the state stays as it is."""

    then: State | None = None
    act: Callable[..., Later] | None = None  # takes the session, or the open channel, and what came
    answer: type[m.Method] | None = None
    gathered: bool = False  # takes effect at the end of the turn; any other act first has that carried out


class Fault(NamedTuple):
    """What is wrong, and ends the connection. `{method}` in the text is the method's name."""

    reply_code: int
    text: str
    names_method: bool = True

    def error(self, method: type[m.Method]) -> FrameError:
        numbers = (method.CLASS_ID, method.METHOD_ID) if self.names_method else (0, 0)
        return FrameError(self.reply_code, self.text.format(method=method.NAME), *numbers)


Row: TypeAlias = Mapping[type[m.Method], Step[State] | Fault]

UNEXPECTED: Final = Fault(COMMAND_INVALID, "unexpected method {method}")
NOT_FOR_CLIENTS: Final = Fault(COMMAND_INVALID, "{method} is not for clients to send")
NOT_OPENED: Final = Fault(CHANNEL_ERROR, "expected 'channel.open'", names_method=False)
OPENED_TWICE: Final = Fault(CHANNEL_ERROR, "second 'channel.open' seen")
NOT_FOR_CHANNEL_0: Final = Fault(CHANNEL_ERROR, "no method for channel 0", names_method=False)
CONTENT_ON_CHANNEL_0: Final = Fault(UNEXPECTED_FRAME, "{method} on channel 0")  # the parser tells of it

_ONCE_PER_MESSAGE: Final = (m.BasicPublish, m.BasicAck, m.BasicNack, m.BasicReject)
_CONTENT: Final = tuple(method for method in m.all_methods() if method.HAS_CONTENT)
_SERVERS_CONTENT: Final = tuple(method for method in _CONTENT if method is not m.BasicPublish)

# -- connections: what comes on channel 0 ------------------------------------------------------------------------------

HEADER_STEP: Final = Step(
    ConnectionState.START, handshake.begin
)  # for the protocol header, which the parser sees first
_IGNORED: Final = Step[ConnectionState]()
_GOODBYE: Final[Row[ConnectionState]] = {m.ConnectionClose: Step(ConnectionState.CLOSED, handshake.say_goodbye)}


def _takes(steps: Row[ConnectionState]) -> Row[ConnectionState]:
    """These, connection.close, and nothing else."""
    row: dict[type[m.Method], Step[ConnectionState] | Fault] = dict.fromkeys(m.all_methods(), UNEXPECTED)
    row.update(dict.fromkeys(_ONCE_PER_MESSAGE, NOT_FOR_CHANNEL_0))
    row.update(dict.fromkeys(_CONTENT, CONTENT_ON_CHANNEL_0))
    return {**row, **_GOODBYE, **steps}


CONNECTIONS: Final[Mapping[ConnectionState, Row[ConnectionState]]] = {
    ConnectionState.HEADER: _takes({}),
    ConnectionState.START: _takes({m.ConnectionStartOk: Step(ConnectionState.LOGIN, handshake.log_in)}),
    ConnectionState.LOGIN: _takes({}),
    ConnectionState.TUNE: _takes({m.ConnectionTuneOk: Step(ConnectionState.OPEN, handshake.agree)}),
    ConnectionState.OPEN: _takes({m.ConnectionOpen: Step(ConnectionState.RUNNING, handshake.enter)}),
    ConnectionState.RUNNING: _takes({m.ConnectionUpdateSecret: Step(act=handshake.update_secret)}),
    ConnectionState.CLOSING: {
        **dict.fromkeys(m.all_methods(), _IGNORED),
        **dict.fromkeys(_CONTENT, Step(ConnectionState.CLOSED)),  # after these, the parser finds no further frame
        **_GOODBYE,
        m.ConnectionCloseOk: Step(ConnectionState.CLOSED),
    },
    ConnectionState.CLOSED: dict.fromkeys(m.all_methods(), _IGNORED),
}

# -- channels ----------------------------------------------------------------------------------------------------------

_PASSED_OVER: Final = Step[ChannelState]()


def _does(operation: Callable[..., Later]) -> Step[ChannelState]:
    return Step(act=operation)


def _gathers(operation: Callable[..., Later]) -> Step[ChannelState]:
    return Step(act=operation, gathered=True)


def _on_channel(otherwise: Step[ChannelState] | Fault, cells: Row[ChannelState]) -> Row[ChannelState]:
    row: dict[type[m.Method], Step[ChannelState] | Fault] = dict.fromkeys(m.all_methods(), otherwise)
    row.update(dict.fromkeys(_SERVERS_CONTENT, NOT_FOR_CLIENTS))
    return {**row, **cells}


CHANNELS: Final[Mapping[ChannelState, Row[ChannelState]]] = {
    ChannelState.UNOPENED: _on_channel(NOT_OPENED, {m.ChannelOpen: Step(ChannelState.OPEN, answer=m.ChannelOpenOk)}),
    ChannelState.OPEN: _on_channel(
        UNEXPECTED,
        {
            m.ChannelOpen: OPENED_TWICE,
            m.ChannelClose: Step(ChannelState.UNOPENED, answer=m.ChannelCloseOk),
            m.ChannelCloseOk: _PASSED_OVER,
            m.ChannelFlow: _does(operations.channel_flow),
            m.ChannelFlowOk: _PASSED_OVER,
            m.AccessRequest: Step(answer=m.AccessRequestOk),
            m.ExchangeDeclare: _does(declarations.exchange_declare),
            m.ExchangeDelete: _does(declarations.exchange_delete),
            m.ExchangeBind: _does(declarations.exchange_bind),
            m.ExchangeUnbind: _does(declarations.exchange_unbind),
            m.QueueDeclare: _does(declarations.queue_declare),
            m.QueueBind: _does(declarations.queue_bind),
            m.QueueUnbind: _does(declarations.queue_unbind),
            m.QueuePurge: _does(declarations.queue_purge),
            m.QueueDelete: _does(declarations.queue_delete),
            m.BasicQos: _does(operations.basic_qos),
            m.BasicConsume: _does(operations.basic_consume),
            m.BasicCancel: _does(operations.basic_cancel),
            m.BasicCancelOk: _PASSED_OVER,
            m.BasicGet: _does(operations.basic_get),
            m.BasicRecover: _does(operations.basic_recover),
            m.BasicRecoverAsync: _does(operations.basic_recover_async),
            m.BasicPublish: _gathers(Channel.publish),
            m.BasicAck: _gathers(Channel.acknowledge),
            m.BasicNack: _gathers(Channel.refuse),
            m.BasicReject: _gathers(Channel.refuse),
            m.ConfirmSelect: _does(operations.confirm_select),
            m.TxSelect: _does(operations.tx_select),
            m.TxCommit: _does(operations.tx_commit),
            m.TxRollback: _does(operations.tx_rollback),
        },
    ),
    ChannelState.CLOSING: _on_channel(
        _PASSED_OVER,
        {
            m.ChannelCloseOk: Step(ChannelState.UNOPENED),
            m.ChannelClose: Step(ChannelState.UNOPENED, answer=m.ChannelCloseOk),  # both sides closed at once
        },
    ),
}

# What comes on another channel than 0 while the connection is not running.
_TOO_EARLY: Final = _on_channel(UNEXPECTED, dict.fromkeys(_ONCE_PER_MESSAGE, NOT_OPENED))
_TOO_LATE: Final[Row[ChannelState]] = dict.fromkeys(m.all_methods(), _PASSED_OVER)


def row_of_channel(connection: ConnectionState, channel: ChannelState) -> Row[ChannelState]:
    if connection is ConnectionState.RUNNING:
        return CHANNELS[channel]
    if connection in {ConnectionState.CLOSING, ConnectionState.CLOSED}:
        return _TOO_LATE
    return _TOO_EARLY
