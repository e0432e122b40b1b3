"""The pytest plugin: the fixture `trunkline_broker` is a real broker on free ports, with an empty log, per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trunkline.app import Broker


@pytest.fixture
def trunkline_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker; `trunkline_broker.bootstrap` is what a Kafka client connects to."""
    from trunkline.app import run  # only tests that ask for a broker pay for importing it

    data: Path = tmp_path_factory.mktemp("trunkline")
    with run(data) as broker:
        yield broker
