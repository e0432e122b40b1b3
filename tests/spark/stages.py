"""A stage for the patterns of examples/pipelines: the tests' broker and session, and names that no other test uses."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from stage import Stage

from tests.integration.server import ServerProcess


@pytest.fixture
def stage(spark: SparkSession, broker: ServerProcess, tmp_path: Path, unique: Callable[[str], str]) -> Stage:
    return Stage(
        broker.bootstrap,
        spark,
        tmp_path,
        unique("example") + "-",
        f"{broker.host}:{broker.port_of('amqp')}",
        f"{broker.host}:{broker.port_of('mqtt')}",
        console=Console(file=io.StringIO(), width=120),
    )
