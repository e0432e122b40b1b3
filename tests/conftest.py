"""Options and markers shared by every test.

`--against trunkline` (the default) runs the integration tests on our own server process, `--against kafka` on an Apache
Kafka that the run starts, `--against rabbitmq` those for AMQP on a RabbitMQ, `--against HOST:PORT` on a broker that is
already up. The same tests must pass on all of them; what the other answers differently is marked `ours_only` with the
reason.

`--store late` runs the tests of cursors and sessions, and every server that the integration tests start, over a store that
answers late (see `late_log`). The contract suite runs over every store; `--store` names one of them for it.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests import stores

# How long an example takes says something about the machine, not about the promise: no deadlines.
settings.register_profile("trunkline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trunkline")

# A run that a shell started in the background ignores SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against",
        default="trunkline",
        metavar="BROKER",
        help="what the integration tests talk to: trunkline; kafka or rabbitmq (started by the run); or HOST:PORT (already up)",
    )
    parser.addoption(
        "--store",
        choices=stores.STORES,
        help="what the log is kept in: memory, embedded, or late (a store that answers late, before what the tests choose)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ours_only(reason): promises that the peer does not make, or makes differently")
    config.addinivalue_line(
        "markers", "at_once(reason): promises that only a store which knows places at once can keep"
    )
    stores.choose(config.getoption("--store"))
    against = config.getoption("--against")
    if against in {"kafka", "rabbitmq"} and config.getoption("numprocesses", None):
        raise pytest.UsageError(f"--against {against} starts one such broker per worker: run it without -n")
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


def pytest_report_header() -> str:
    return f"late stores: {stores.SEED_VARIABLE}={stores.seed()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if stores.is_late():
        for item in items:
            marker = item.get_closest_marker("at_once")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=f"not over a late store: {marker.args[0]}"))
    if config.getoption("--against") == "trunkline":
        return
    for item in items:
        marker = item.get_closest_marker("ours_only")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"only Trunkline: {marker.args[0]}"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report failures with the collector off: early releases of Python 3.11 fail to parse source when a collection runs
    finalizers in the middle of it (CPython gh-106905), and clients of every kind have finalizers."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
