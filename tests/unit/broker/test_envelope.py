"""The envelope of a message: its record says the same as its publication did, whichever listeners are on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.amqp.codec_samples import tables
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.envelope import Envelope, addressed, read_section, routing_fields_of
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.typed_values import FieldValue, encode_fields
from trunkline.broker.state.topology import settled
from trunkline.cursors.queue import Message, QueueSettings
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.records import decode_headers, encode_headers

ADDRESS = [("amqp.exchange", b"x"), ("amqp.routing-key", b"k")]


async def declare(core: BrokerCore, name: str, settings: QueueSettings | None = None) -> Queue:
    vhost = core.messaging.topology.vhosts["/"]
    return await core.messaging.queues.declare(vhost, QueueDeclaration(name, settings or QueueSettings()))


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        pytest.param([("colour", b"red")], {"colour": "red"}, id="a record of another protocol"),
        pytest.param([*ADDRESS, ("colour", b"red")], {"colour": "red"}, id="text"),
        pytest.param(
            [*ADDRESS, ("size", b"7"), ("amqp.headers", encode_fields({"size": 7}))], {"size": 7}, id="a number"
        ),
    ],
)
def test_dead_letters_are_routed_by_their_headers_with_no_listener_on(
    tmp_path: Path, headers: list[tuple[str, bytes | None]], wanted: dict[str, object]
) -> None:
    async def test() -> None:
        core = BrokerCore(EmbeddedStore(tmp_path))
        await core.start()
        try:
            topology = core.messaging.topology
            source = await declare(core, "source", QueueSettings(dead_letter=("amq.headers", None)))
            found, other = await declare(core, "found"), await declare(core, "other")
            for queue, value in ((found, wanted), (other, dict.fromkeys(wanted, "none"))):
                recorded = topology.bind(
                    topology.vhosts["/"], "amq.headers", queue.name, "", {"x-match": "all", **value}
                )
                await settled(recorded)
            core.messaging.publishing.add(source, Message(b"body", encode_headers(headers)))
            core.messaging.turn.run()
            (delivery,) = source.cursor.acquire(1, consumer=object())
            source.cursor.reject([delivery.offset])
            core.messaging.turn.run()
            assert (found.cursor.ready, other.cursor.ready) == (1, 0)
        finally:
            await core.close()

    asyncio.run(test())


@given(tables, st.text(max_size=9), st.text(max_size=9))
def test_a_record_is_routed_as_its_publication_was(table: dict[str, FieldValue], exchange: str, key: str) -> None:
    envelope = Envelope(exchange, key)
    envelope.fields = encode_fields({**table, "BCC": ["hidden"]})
    envelope.seal([("amqp.priority", b"3")])
    published = envelope.routing_fields(b"body").headers
    assert "BCC" not in published
    assert repr(sorted(routing_fields_of(envelope.section, b"body").headers.items())) == repr(sorted(published.items()))
    reserved, _ = read_section(envelope.section)
    assert (reserved["amqp.exchange"], reserved["amqp.routing-key"]) == (exchange.encode(), key.encode())
    assert reserved["amqp.priority"] == b"3"
    assert envelope.copies == ("hidden",)


def test_an_address_comes_before_the_headers_that_a_record_has() -> None:
    section = addressed(encode_headers([("own", b"1"), ("nothing", None)]), "amq.topic", "a.b")
    assert list(decode_headers(section)) == [
        ("amqp.exchange", b"amq.topic"),
        ("amqp.routing-key", b"a.b"),
        ("own", b"1"),
        ("nothing", None),
    ]
