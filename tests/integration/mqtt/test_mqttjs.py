"""Node's MQTT.js, over TCP and WebSocket. The library is installed once into the user's cache directory."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.mqtt.brokers import HOST, MqttBroker

MQTTJS_VERSION = "5.15.0"
INSTALL_SECONDS = 150.0
SCENARIO_SECONDS = 60.0
SCENARIO = Path(__file__).parent / "node" / "scenario.mjs"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="needs Node.js and npm"
)


@pytest.fixture(scope="session")
def library() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "trunkline" / f"mqttjs-{MQTTJS_VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "node_modules" / "mqtt" / "package.json").exists():
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(home), f"mqtt@{MQTTJS_VERSION}"],
                capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
    return home


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
@pytest.mark.parametrize("protocol", ["4", "5"], ids=["3.1.1", "5.0"])
def test_mqttjs_sees_what_it_should(mqtt: MqttBroker, library: Path, topic: str, protocol: str, transport: str) -> None:
    url = f"ws://{HOST}:{mqtt.ws_port}/mqtt" if transport == "websocket" else f"mqtt://{HOST}:{mqtt.port}"
    done = subprocess.run(
        ["node", str(SCENARIO), str(library), url, protocol, topic],
        capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["granted"] == [2]
    assert seen["order"] == [[f"{topic}/{qos}", str(number), qos] for qos in range(3) for number in range(10)]
    if protocol == "5":
        assert seen["properties"] == {
            "contentType": "text/plain",
            "responseTopic": "r",
            "correlationData": [1, 2],
            "userProperties": {"a": ["1", "2"]},
        }
    assert seen["retained"] == ["kept", True]
    assert seen["missed"] == ["0", "1", "2", "3", "4"]
    assert seen["will"] == "gone"
