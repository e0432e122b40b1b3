"""One Spark session for all tests of this folder, in one worker, and a broker beside it.

Every test here is marked `spark` and put into one xdist group: a JVM on each worker would cost more than it gives. The
session also knows Spark's own Kafka connector, where it can be fetched.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from private_postgres import PrivatePostgres
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from stage import Stage

from tests.integration.server import ServerProcess
from trunkline.bench.spark_connector import Connector, ConnectorUnavailable, fetch_connector
from trunkline.client.client import Client
from trunkline.pipeline.session import local_session

HERE = Path(__file__).parent
BrokerFactory = Callable[..., ServerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def _connector() -> Connector | ConnectorUnavailable:
    try:
        return fetch_connector(pyspark.__version__)
    except ConnectorUnavailable as error:
        return error


@pytest.fixture(scope="session")
def spark(
    _connector: Connector | ConnectorUnavailable, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    conf = dict(_connector.conf) if isinstance(_connector, Connector) else {}
    conf["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
    session = local_session("trunkline-tests", heap="1g", conf=conf, quick_start=True)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def kafka_format(_connector: Connector | ConnectorUnavailable, spark: SparkSession) -> str:
    """The name of Spark's own connector in the session."""
    if isinstance(_connector, ConnectorUnavailable):
        pytest.skip(str(_connector))
    return "kafka"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One broker for all tests that do not stop it: use topics of your own (`topic`)."""
    server = ServerProcess(tmp_path_factory.mktemp("spark-broker"))
    server.start()
    yield server
    assert server.stop() == 0, server.log_tail()


@pytest.fixture
def fresh_broker(tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker of the test's own, which it may stop, kill and start again."""
    server = ServerProcess(tmp_path / "broker")
    server.start()
    yield server
    server.close()


@pytest.fixture
def client(broker: ServerProcess) -> Iterator[Client]:
    with Client(broker.bootstrap) as client:
        yield client


@pytest.fixture
def unique() -> Callable[[str], str]:
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def read(spark: SparkSession, broker: ServerProcess) -> Callable[..., DataFrame]:
    """`read(subscribe="orders", startingOffsets="latest")`: a batch DataFrame."""

    def load(**options: object) -> DataFrame:
        reader = spark.read.format("trunkline").option("bootstrap", broker.bootstrap)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return load


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server


@pytest.fixture
def stage(spark: SparkSession, broker: ServerProcess, tmp_path: Path, unique: Callable[[str], str]) -> Stage:
    """A stage for the patterns of examples/pipelines: the tests' broker and session, and names that no other test uses."""
    return Stage(
        broker.bootstrap,
        spark,
        tmp_path,
        unique("example") + "-",
        f"{broker.host}:{broker.port_of('amqp')}",
        f"{broker.host}:{broker.port_of('mqtt')}",
        console=Console(file=io.StringIO(), width=120),
    )
