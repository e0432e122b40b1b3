"""Every method of AMQP 0-9-1 with RabbitMQ's extensions, as declarations.

    method frame payload   u16 class, u16 method, then the arguments in the order declared
    arguments              Octet u8 · Short u16 · Long u32 · LongLong u64 · ShortString u8 length, UTF-8
                           LongString u32 length, bytes · FieldTable · Bit, up to eight in a row packed into one octet,
                           the first in the lowest bit

The annotations of a declaration say how the arguments are encoded, and `arguments` goes by them. The methods that come once per message (publish, ack, nack, reject, deliver) are declared
here too, but the parser and the encoder in `codec` treat them without passing through this module.
"""

from collections.abc import Callable
from inspect import get_annotations
from typing import Annotated, ClassVar, TypeVar, dataclass_transform

from trunkline.broker.messaging.typed_values import FieldValue

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
ShortString = Annotated[str, "short string"]
LongString = Annotated[bytes, "long string"]
FieldTable = Annotated[dict[str, FieldValue], "table"]
Bit = Annotated[bool, "bit"]

M = TypeVar("M", bound="Method")


class Method:
    """What all methods have in common: their numbers, how their arguments are encoded, and how they are made.

    To a type checker they are frozen dataclasses. The dataclasses module itself would take longer to make the 65 of them
    than a broker takes to start, as it compiles six functions for each.
    """

    CLASS_ID: ClassVar[int] = 0
    METHOD_ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    HAS_CONTENT: ClassVar[bool] = False
    WIRE: ClassVar[tuple[tuple[str, str], ...]] = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *values: object, **named: object) -> None:
        names = self.__match_args__
        given = {**dict(zip(names, values, strict=False)), **named}
        if len(given) != len(values) + len(named) or not given.keys() <= set(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no arguments'}")
        for name in names:
            if name not in given:
                given[name] = getattr(type(self), name)
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self.__match_args__)})"


BY_ID: dict[tuple[int, int], type[Method]] = {}
CLASS_NAMES = {
    10: "connection", 20: "channel", 30: "access", 40: "exchange", 50: "queue", 60: "basic", 85: "confirm", 90: "tx"
}  # fmt: skip


@dataclass_transform(frozen_default=True)
def method(class_id: int, method_id: int, name: str, *, content: bool = False) -> Callable[[type[M]], type[M]]:
    def declare(cls: type[M]) -> type[M]:
        hints = get_annotations(cls)
        cls.CLASS_ID = class_id
        cls.METHOD_ID = method_id
        cls.NAME = f"{CLASS_NAMES[class_id]}.{name}"
        cls.HAS_CONTENT = content
        cls.WIRE = tuple((field, hint.__metadata__[0]) for field, hint in hints.items())
        type.__setattr__(cls, "__match_args__", tuple(hints))  # which a type checker takes for its own
        BY_ID[class_id, method_id] = cls
        return cls

    return declare


# -- connection ------------------------------------------------------------------------------------------------------


@method(10, 10, "start")
class ConnectionStart(Method):
    version_major: Octet
    version_minor: Octet
    server_properties: FieldTable
    mechanisms: LongString
    locales: LongString


@method(10, 11, "start-ok")
class ConnectionStartOk(Method):
    client_properties: FieldTable
    mechanism: ShortString
    response: LongString
    locale: ShortString


@method(10, 20, "secure")
class ConnectionSecure(Method):
    challenge: LongString


@method(10, 21, "secure-ok")
class ConnectionSecureOk(Method):
    response: LongString


@method(10, 30, "tune")
class ConnectionTune(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 31, "tune-ok")
class ConnectionTuneOk(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 40, "open")
class ConnectionOpen(Method):
    virtual_host: ShortString
    reserved_capabilities: ShortString = ""
    reserved_insist: Bit = False


@method(10, 41, "open-ok")
class ConnectionOpenOk(Method):
    reserved_known_hosts: ShortString = ""


@method(10, 50, "close")
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortString
    class_id: Short = 0
    method_id: Short = 0


@method(10, 51, "close-ok")
class ConnectionCloseOk(Method):
    pass


@method(10, 60, "blocked")
class ConnectionBlocked(Method):
    reason: ShortString = ""


@method(10, 61, "unblocked")
class ConnectionUnblocked(Method):
    pass


@method(10, 70, "update-secret")
class ConnectionUpdateSecret(Method):
    new_secret: LongString
    reason: ShortString


@method(10, 71, "update-secret-ok")
class ConnectionUpdateSecretOk(Method):
    pass


# -- channel ---------------------------------------------------------------------------------------------------------


@method(20, 10, "open")
class ChannelOpen(Method):
    reserved_out_of_band: ShortString = ""


@method(20, 11, "open-ok")
class ChannelOpenOk(Method):
    reserved_channel_id: LongString = b""


@method(20, 20, "flow")
class ChannelFlow(Method):
    active: Bit


@method(20, 21, "flow-ok")
class ChannelFlowOk(Method):
    active: Bit


@method(20, 40, "close")
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortString
    class_id: Short = 0
    method_id: Short = 0


@method(20, 41, "close-ok")
class ChannelCloseOk(Method):
    pass


# -- access (from 0-8; old clients still ask) ------------------------------------------------------------------------


@method(30, 10, "request")
class AccessRequest(Method):
    realm: ShortString
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@method(30, 11, "request-ok")
class AccessRequestOk(Method):
    ticket: Short = 1


# -- exchange --------------------------------------------------------------------------------------------------------


@method(40, 10, "declare")
class ExchangeDeclare(Method):
    ticket: Short
    exchange: ShortString
    type: ShortString
    passive: Bit
    durable: Bit
    auto_delete: Bit
    internal: Bit
    nowait: Bit
    arguments: FieldTable


@method(40, 11, "declare-ok")
class ExchangeDeclareOk(Method):
    pass


@method(40, 20, "delete")
class ExchangeDelete(Method):
    ticket: Short
    exchange: ShortString
    if_unused: Bit
    nowait: Bit


@method(40, 21, "delete-ok")
class ExchangeDeleteOk(Method):
    pass


@method(40, 30, "bind")
class ExchangeBind(Method):
    ticket: Short
    destination: ShortString
    source: ShortString
    routing_key: ShortString
    nowait: Bit
    arguments: FieldTable


@method(40, 31, "bind-ok")
class ExchangeBindOk(Method):
    pass


@method(40, 40, "unbind")
class ExchangeUnbind(Method):
    ticket: Short
    destination: ShortString
    source: ShortString
    routing_key: ShortString
    nowait: Bit
    arguments: FieldTable


@method(40, 51, "unbind-ok")
class ExchangeUnbindOk(Method):
    pass


# -- queue -----------------------------------------------------------------------------------------------------------


@method(50, 10, "declare")
class QueueDeclare(Method):
    ticket: Short
    queue: ShortString
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    nowait: Bit
    arguments: FieldTable


@method(50, 11, "declare-ok")
class QueueDeclareOk(Method):
    queue: ShortString
    message_count: Long
    consumer_count: Long


@method(50, 20, "bind")
class QueueBind(Method):
    ticket: Short
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString
    nowait: Bit
    arguments: FieldTable


@method(50, 21, "bind-ok")
class QueueBindOk(Method):
    pass


@method(50, 30, "purge")
class QueuePurge(Method):
    ticket: Short
    queue: ShortString
    nowait: Bit


@method(50, 31, "purge-ok")
class QueuePurgeOk(Method):
    message_count: Long


@method(50, 40, "delete")
class QueueDelete(Method):
    ticket: Short
    queue: ShortString
    if_unused: Bit
    if_empty: Bit
    nowait: Bit


@method(50, 41, "delete-ok")
class QueueDeleteOk(Method):
    message_count: Long


@method(50, 50, "unbind")
class QueueUnbind(Method):
    ticket: Short
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString
    arguments: FieldTable


@method(50, 51, "unbind-ok")
class QueueUnbindOk(Method):
    pass


# -- basic -----------------------------------------------------------------------------------------------------------


@method(60, 10, "qos")
class BasicQos(Method):
    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@method(60, 11, "qos-ok")
class BasicQosOk(Method):
    pass


@method(60, 20, "consume")
class BasicConsume(Method):
    ticket: Short
    queue: ShortString
    consumer_tag: ShortString
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    nowait: Bit
    arguments: FieldTable


@method(60, 21, "consume-ok")
class BasicConsumeOk(Method):
    consumer_tag: ShortString


@method(60, 30, "cancel")
class BasicCancel(Method):
    consumer_tag: ShortString
    nowait: Bit


@method(60, 31, "cancel-ok")
class BasicCancelOk(Method):
    consumer_tag: ShortString


@method(60, 40, "publish", content=True)
class BasicPublish(Method):
    ticket: Short
    exchange: ShortString
    routing_key: ShortString
    mandatory: Bit
    immediate: Bit


@method(60, 50, "return", content=True)
class BasicReturn(Method):
    reply_code: Short
    reply_text: ShortString
    exchange: ShortString
    routing_key: ShortString


@method(60, 60, "deliver", content=True)
class BasicDeliver(Method):
    consumer_tag: ShortString
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortString
    routing_key: ShortString


@method(60, 70, "get")
class BasicGet(Method):
    ticket: Short
    queue: ShortString
    no_ack: Bit


@method(60, 71, "get-ok", content=True)
class BasicGetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortString
    routing_key: ShortString
    message_count: Long


@method(60, 72, "get-empty")
class BasicGetEmpty(Method):
    reserved_cluster_id: ShortString = ""


@method(60, 80, "ack")
class BasicAck(Method):
    delivery_tag: LongLong
    multiple: Bit


@method(60, 90, "reject")
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit


@method(60, 100, "recover-async")
class BasicRecoverAsync(Method):
    requeue: Bit


@method(60, 110, "recover")
class BasicRecover(Method):
    requeue: Bit


@method(60, 111, "recover-ok")
class BasicRecoverOk(Method):
    pass


@method(60, 120, "nack")
class BasicNack(Method):
    delivery_tag: LongLong
    multiple: Bit
    requeue: Bit


# -- confirm and tx --------------------------------------------------------------------------------------------------


@method(85, 10, "select")
class ConfirmSelect(Method):
    nowait: Bit


@method(85, 11, "select-ok")
class ConfirmSelectOk(Method):
    pass


@method(90, 10, "select")
class TxSelect(Method):
    pass


@method(90, 11, "select-ok")
class TxSelectOk(Method):
    pass


@method(90, 20, "commit")
class TxCommit(Method):
    pass


@method(90, 21, "commit-ok")
class TxCommitOk(Method):
    pass


@method(90, 30, "rollback")
class TxRollback(Method):
    pass


@method(90, 31, "rollback-ok")
class TxRollbackOk(Method):
    pass


# -- looking them up ------------------------------------------------------------------------------------------------


def all_methods() -> list[type[Method]]:
    return list(BY_ID.values())
