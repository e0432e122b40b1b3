"""The pytest plugin: real brokers for other people's tests.

`trunkline_broker` is one on free ports, with an empty log, per test; `trunkline_connection` is the Python API, connected to one
that lives in memory. A test that calls it `t` says `t = trunkline_connection`, or makes a fixture of that name of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trunkline.api.faces import Connection
    from trunkline.app import Broker


@pytest.fixture
def trunkline_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker; `trunkline_broker.bootstrap` is what a Kafka client connects to."""
    from trunkline.app import run  # only tests that ask for a broker pay for importing it

    data: Path = tmp_path_factory.mktemp("trunkline")
    with run(data) as broker:
        yield broker


@pytest.fixture
def trunkline_connection() -> Iterator[Connection]:
    """`trunkline.connect("memory:")`, closed after the test."""
    from trunkline.api.faces import connect

    with connect("memory:") as connection:
        yield connection
