"""Node's amqplib: the scenarios of `node/scenarios.js`, each in a process of its own.

The library is installed once, by npm, into the user's cache directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.amqp.brokers import AmqpBroker, url

HERE = Path(__file__).parent / "node"
INSTALL_SECONDS = 300.0
SCENARIO_SECONDS = 60.0
SCENARIOS = (
    "confirms",
    "properties",
    "topics",
    "redelivery",
    "prefetch",
    "rpc",
    "returns",
    "errors",
    "cancellation",
    "large",
)

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="Node and npm are not installed"
)


@pytest.fixture(scope="module")
def modules() -> Path:
    """The directory with amqplib, as package.json wants it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline" / "amqplib"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one run come here at the same time
        wanted = (HERE / "package.json").read_bytes()
        installed = cache / "installed.json"
        if not installed.exists() or installed.read_bytes() != wanted:
            (cache / "package.json").write_bytes(wanted)
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(cache)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            installed.write_bytes(wanted)
    return cache / "node_modules"


def run(modules: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["node", str(HERE / "scenarios.js"), *arguments],
        capture_output=True,
        text=True,
        timeout=SCENARIO_SECONDS,
        env={**os.environ, "NODE_PATH": str(modules)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(360)
def test_every_scenario_is_run(modules: Path) -> None:
    assert tuple(run(modules, "--list").split()) == SCENARIOS


@pytest.mark.timeout(360)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_amqplib(amqp: AmqpBroker, modules: Path, scenario: str) -> None:
    run(modules, url(amqp), scenario)
