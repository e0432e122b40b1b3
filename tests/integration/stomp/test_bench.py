"""Every case of the benchmark runs, on either broker."""

from __future__ import annotations

import pytest

from tests.integration.stomp.conftest import StompBroker
from trunkline.bench.stomp_cases import KINDS
from trunkline.bench.stomp_load import Job, measure


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_measured_and_its_messages_checked(stomp: StompBroker, kind: str) -> None:
    (rate,) = measure(Job(kind, f"127.0.0.1:{stomp.stomp_port}", 100, 2000))
    assert rate > 0
