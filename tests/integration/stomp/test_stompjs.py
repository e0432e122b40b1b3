"""StompJS, the usual JavaScript client, over WebSocket and TCP. The library is installed once into the user's cache directory."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.stomp.conftest import Ours

HERE = Path(__file__).parent / "node"
INSTALL_SECONDS = 150.0
SCENARIO_SECONDS = 60.0

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None or shutil.which("npm") is None, reason="needs Node.js and npm"),
    pytest.mark.ours_only("RabbitMQ needs another plugin for WebSocket"),
]


@pytest.fixture(scope="session")
def modules() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline" / "stompjs"
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
    return cache


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["tcp", "websocket"])
def test_stompjs_sees_what_it_should(stomp: Ours, modules: Path, unique: Callable[[str], str], transport: str) -> None:
    url = f"ws://127.0.0.1:{stomp.ws_port}/ws" if transport == "websocket" else f"tcp://127.0.0.1:{stomp.stomp_port}"
    queue, topic = f"/queue/{unique('js')}", f"/topic/{unique('js')}"
    done = subprocess.run(
        ["node", str(HERE / "scenario.mjs"), str(modules), url, queue, topic],
        capture_output=True,
        text=True,
        timeout=SCENARIO_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["version"] == "1.2"
    assert seen["error"] is None
    assert seen["connected"]
    assert seen["nacked"] == ["grüße"]
    assert ["grüße", "red:green", "false"] in seen["messages"]
    assert ["grüße", "red:green", "true"] in seen["messages"]
    assert [[0, 1, 255], None, "false"] in seen["messages"]
    assert seen["topic"] == [topic, "news"]
    assert seen["transaction"] == ["commit"]
    assert seen["receipts"] == 2
