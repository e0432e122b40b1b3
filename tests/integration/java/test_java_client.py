"""The official Java client against the broker: every scenario of `scenarios/`, all of them in one JVM.

The program does the checking and reports each scenario on a line of JSON; a test here is one scenario. They run
together because starting a JVM and loading the client costs more than most of them do.
"""

from __future__ import annotations

import fcntl
import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.java.jvm import compiled, java
from tests.integration.server import RunningBroker
from trunkline.bench.apache_kafka import classpath

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java"), pytest.mark.timeout(400)]

SOURCES = Path(__file__).parent / "scenarios"
THREADS = 6
RUN_SECONDS = 300.0
RECORD_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def scenario_names() -> list[str]:
    """Every name that the Java sources register, read from their text so that collecting tests starts no JVM."""
    names: list[str] = []
    for source in sorted(SOURCES.glob("*.java")):
        names += re.findall(r'scenarios\.put\("(\w+)"(?! \+)', source.read_text())
    return names + [f"idempotent_producer_{codec}" for codec in RECORD_CODECS]


@dataclass(frozen=True)
class Outcome:
    ok: bool
    checks: int
    seconds: float
    failure: str


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> dict[str, Outcome]:
    """What each scenario reported. Workers of one run share a report: the first to come runs the program."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    report = shared / "java-scenarios.txt"
    with (shared / "java-scenarios.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report.exists():
            broker: RunningBroker = request.getfixturevalue("broker")
            report.write_text(run_scenarios(broker))
    return parse(report.read_text())


def run_scenarios(broker: RunningBroker) -> str:
    path = classpath()
    classes = compiled(SOURCES, path)
    prefix = f"java-{uuid.uuid4().hex[:8]}"
    done = java(f"{classes}:{path}", ["Run", broker.bootstrap, prefix, str(THREADS)], RUN_SECONDS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def parse(output: str) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for line in output.splitlines():
        if line.startswith('{"scenario"'):
            report = json.loads(line)
            name = report.pop("scenario")
            found[name] = Outcome(**report)
    return found


@pytest.mark.parametrize("scenario", scenario_names())
def test_java_client(scenario: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes.get(scenario)
    assert outcome is not None, f"the program never reported {scenario}; it reported {sorted(outcomes)}"
    assert outcome.ok, outcome.failure
    assert outcome.checks > 0, "a scenario that checks nothing proves nothing"


def test_no_scenario_is_left_out(outcomes: dict[str, Outcome]) -> None:
    assert sorted(outcomes) == sorted(scenario_names())
