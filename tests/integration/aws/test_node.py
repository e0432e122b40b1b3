"""Node's `@aws-sdk/client-sqs`: the scenarios of `node/scenarios.js`, each in a process of its own.

The library is installed once, by npm, into the user's cache directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.aws.conftest import endpoint
from tests.integration.server import ServerProcess

HERE = Path(__file__).parent / "node"
INSTALL_SECONDS = 300.0
SCENARIO_SECONDS = 60.0

pytestmark = [
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None, reason="Node and npm are not installed"
    ),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def modules() -> Path:
    """The directory with the SDK, as package.json wants it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline" / "aws-sdk"
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


@pytest.mark.parametrize("scenario", ["standard", "batches", "fifo", "errors"])
def test_a_scenario(aws: ServerProcess, modules: Path, unique: Callable[[str], str], scenario: str) -> None:
    done = subprocess.run(
        ["node", str(HERE / "scenarios.js"), scenario, endpoint(aws), unique("node")],
        capture_output=True,
        text=True,
        timeout=SCENARIO_SECONDS,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
