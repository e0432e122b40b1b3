"""Every case of the benchmark runs, on either broker."""

from __future__ import annotations

import pytest

from tests.integration.amqp.brokers import HOST, AmqpBroker
from trunkline.bench.amqp_cases import KINDS, REQUEST_REPLY
from trunkline.bench.amqp_load import Job, measure


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_measured_and_its_messages_checked(amqp: AmqpBroker, kind: str) -> None:
    figures = measure(Job(kind, f"{HOST}:{amqp.port}", 100, 200 if kind == REQUEST_REPLY else 3000))
    assert len(figures) == (2 if kind == REQUEST_REPLY else 1)
    assert all(figure > 0 for figure in figures)
