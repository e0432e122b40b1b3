"""What a STOMP client sends: publications, their receipts, and its transactions.

Rules kept:

1. A publication takes effect at the end of its turn. Its receipt follows when every queue that it went to has it on disk; for
   a message that is `persistent:false`, or a queue that is not durable, when the queue has it.
2. A receipt is the client's proof: what was refused is told with an ERROR that names it, and the connection closes.
3. A transaction is all or nothing: its publications and settlements wait for COMMIT. A receipt of a frame within it says that
   the frame is part of it; that of COMMIT that all of it is on disk.
"""

from __future__ import annotations

from collections import deque

from trunkline.broker.messaging.confirms import Confirms
from trunkline.broker.messaging.routes import delay, find_route, is_delayed
from trunkline.broker.messaging.settlements import release
from trunkline.broker.messaging.transaction import Transaction
from trunkline.cursors.queue import Delivery
from trunkline.protocols.stomp import endpoints
from trunkline.protocols.stomp.codec import Send, encode_receipt, unescaped
from trunkline.protocols.stomp.connection import Connection, Later
from trunkline.protocols.stomp.errors import StompError
from trunkline.protocols.stomp.mapping import Envelope
from trunkline.protocols.stomp.subscribing import Subscriptions
from trunkline.security.users import Access

_MAX_KNOWN_EXCHANGES = 4_096


class Sender:
    """Is a `Publisher` to the broker, and `Confirmed` by it."""

    __slots__ = (
        "_confirms",
        "_connection",
        "_last_receipt",
        "_receipts",
        "_subscriptions",
        "_transactions",
        "_writable_exchanges",
    )

    def __init__(self, connection: Connection, subscriptions: Subscriptions) -> None:
        self._connection = connection
        self._subscriptions = subscriptions
        self._confirms = Confirms(self)
        self._receipts: deque[tuple[int, bytes]] = deque()  # with the number of their publication
        self._last_receipt: bytes | None = None  # of DISCONNECT, once everything is told; empty: none is wanted
        self._transactions: dict[bytes, Transaction[Envelope]] = {}
        self._writable_exchanges: set[str] = set()

    # -- publishing ----------------------------------------------------------------------------------------------

    def send(self, event: Send) -> Later:
        connection = self._connection
        envelope = connection.envelopes.by_key.get(event.key)
        if envelope is None:
            envelope = connection.envelopes.of_publication(event.key)
        if envelope.exchange not in self._writable_exchanges:
            self._check_write(envelope.exchange)
        if envelope.exchange:
            connection.check_key(Access.WRITE, envelope.exchange, envelope.routing_key)
        if b"\\" in event.receipt:
            unescaped(event.receipt, connection.version)  # it goes back as it came, if it can be read
        if not envelope.plain:
            user = envelope.user_id
            if user is not None and user != connection.principal.name:
                text = f"user_id property set to '{user}' but authenticated user was '{connection.principal.name}'"
                raise StompError("precondition_failed", f"PRECONDITION_FAILED - {text}")
            if envelope.temporary:
                return self._send_with_replies(envelope, event)
        return self._publish(envelope, event)

    def _publish(self, envelope: Envelope, event: Send) -> Later:
        connection = self._connection
        vhost = connection.vhost
        queues = envelope.queues if envelope.route_version == vhost.version else find_route(vhost, envelope, event.body)
        if not queues and envelope.declares:
            return self._declare_and_publish(envelope, event)
        if event.transaction:
            self._transaction(unescaped(event.transaction, connection.version)).publish(envelope, event.body, queues)
            self._answer(event.receipt)
            return None
        publishing = connection.service.publishing
        sequence = 0
        if event.receipt:
            sequence = self._confirms.add(len(event.body))
            self._receipts.append((sequence, event.receipt))
            publishing.notify(self)
        if vhost.delayed_exchanges and is_delayed(vhost, envelope):
            waiting = delay(queues, envelope, event.body, connection.now_ms, confirmed=bool(sequence))
            if sequence:
                self._confirms.stored += waiting
            return None
        message = envelope.message(event.body, connection.now_ms)
        for queue in queues:
            keyed = message._replace(key=envelope.order_key) if queue.orders_by_key else message
            if not sequence:
                publishing.add(queue, keyed)
                continue
            self._confirms.queues[queue] = None
            publishing.add(
                queue,
                keyed,
                disk=envelope.persistent and queue.durable,
                origin=(self, sequence) if queue.may_reject else None,
            )
        return None

    async def _declare_and_publish(self, envelope: Envelope, event: Send) -> None:
        await endpoints.declare_plain(self._connection, envelope.declares)
        if not self._connection.closed:
            later = self._publish(envelope, event)
            if later is not None:  # the queue went at once
                await later

    async def _send_with_replies(self, envelope: Envelope, event: Send) -> None:
        """The replies go to a queue of the connection's own, which it is subscribed to from now on."""
        connection = self._connection
        queue = await self._subscriptions.of_replies(envelope.temporary)
        if not connection.closed:
            later = self._publish(connection.envelopes.answered_at(event.key, queue), event)
            if later is not None:
                await later

    def access_changed(self) -> None:
        self._writable_exchanges.clear()

    def _check_write(self, exchange: str) -> None:
        self._connection.check_access(Access.WRITE, "exchange", exchange)
        if len(self._writable_exchanges) >= _MAX_KNOWN_EXCHANGES:
            self._writable_exchanges.clear()
        self._writable_exchanges.add(exchange)

    def _answer(self, receipt: bytes) -> None:
        if receipt:
            self._connection.send(encode_receipt(receipt))

    # -- receipts --------------------------------------------------------------------------------------------------

    def stored(self) -> None:
        if not self._connection.closed:
            self._confirms.end_turn()

    def rejected(self, sequence: int) -> None:
        self._confirms.reject(sequence)

    def tell_stored(self, last: int) -> None:
        receipts = self._receipts
        told: list[bytes] = []
        while receipts and receipts[0][0] <= last:
            told.append(encode_receipt(receipts.popleft()[1]))
        self._connection.send(b"".join(told))
        self._finish()

    def tell_refused(self, first: int, last: int) -> None:
        receipt = next((receipt for sequence, receipt in self._receipts if sequence >= first), b"")
        self._receipts.clear()
        self._connection.fail(StompError("Message rejected", "a queue did not take the message\n"), receipt)

    def note_unconfirmed(self, more_bytes: int) -> None:
        self._connection.note_unconfirmed(more_bytes)

    def finish(self, receipt: bytes) -> None:
        """The client says goodbye: answer, and close, when everything before is told."""
        self._last_receipt = receipt
        self._connection.flush()
        self._finish()

    def _finish(self) -> None:
        if self._last_receipt is not None and not self._receipts:
            self._answer(self._last_receipt)
            self._last_receipt = None
            self._connection.end()

    # -- transactions ----------------------------------------------------------------------------------------------

    def _transaction(self, name: bytes) -> Transaction[Envelope]:
        found = self._transactions.get(name)
        if found is None:
            shown = name.decode("utf-8", "replace")
            raise StompError("Bad transaction", f'Invalid transaction identifier: "{shown}"\n')
        return found

    def begin(self, name: bytes) -> None:
        """Begun again, a transaction goes on, as in RabbitMQ."""
        connection = self._connection
        if name not in self._transactions:
            if len(self._transactions) >= connection.limits.max_transactions:
                most = connection.limits.max_transactions
                raise StompError("Bad transaction", f"a connection has at most {most} open transactions\n")
            self._transactions[name] = Transaction(connection.limits, connection.note_transaction)

    def settle_in(self, name: bytes, taken: list[tuple[int, Delivery]], *, acknowledge: bool, requeue: bool) -> None:
        transaction = self._transaction(name)
        if acknowledge:
            transaction.acknowledge(taken)
        else:
            transaction.refuse(taken, requeue)

    def check_open(self, name: bytes) -> None:
        self._transaction(name)

    async def commit(self, name: bytes) -> None:
        connection = self._connection
        transaction = self._transaction(name)
        del self._transactions[name]
        letters, _ = transaction.take_letters(connection.now_ms)
        # From here on they are the transaction's: a connection that goes meanwhile does not give them back.
        acknowledged, refused = transaction.acknowledged, transaction.refused
        transaction.clear()
        held = [delivery for _, delivery in acknowledged if delivery.queue.keep(delivery)]
        try:
            await connection.service.messaging.publish_atomically(letters, held)
        except BaseException:
            release(held)
            release(entry[1] for entry, _ in refused)
            raise
        finally:
            self._subscriptions.freed(acknowledged)
        for entry, requeue in refused:
            self._subscriptions.refuse([entry], requeue=requeue)
        if acknowledged or refused:
            connection.flush()
            await connection.service.messaging.settlements_stored()

    def abort(self, name: bytes) -> None:
        transaction = self._transaction(name)
        del self._transactions[name]
        self._subscriptions.put_back(transaction.settled())
        transaction.clear()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._confirms.close()
        self._receipts.clear()
        for transaction in self._transactions.values():
            self._subscriptions.release(transaction.settled())
            transaction.clear()
        self._transactions.clear()
