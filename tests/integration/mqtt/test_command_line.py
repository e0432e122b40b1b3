"""`trunkline mqtt`, `session` and `retained` against a running broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.integration.mqtt.brokers import HOST, MqttBroker
from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import properties
from trunkline.protocols.mqtt.packets import V5

pytestmark = pytest.mark.ours_only("the command line talks to Trunkline")

TIMEOUT_SECONDS = 30.0


def trunkline(broker: MqttBroker, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trunkline", *arguments, "--url", f"mqtt://{HOST}:{broker.port}"],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_pub_and_sub(mqtt: MqttBroker, topic: str) -> None:
    trunkline(mqtt, "mqtt", "pub", topic, "21.5", "--qos", "1", "--retain")
    printed = trunkline(mqtt, "mqtt", "sub", topic, "-n", "1", "--json")
    assert json.loads(printed)["topic"] == topic
    assert trunkline(mqtt, "mqtt", "sub", topic, "-n", "1").strip() == "21.5"


def test_retained_list_and_clear(mqtt: MqttBroker, client: ClientFactory, topic: str) -> None:
    client().publish(topic, b"kept", 1, retain=True)
    assert topic in trunkline(mqtt, "retained", "list", f"{topic}/#")
    trunkline(mqtt, "retained", "clear", topic, "--yes")
    assert topic not in trunkline(mqtt, "retained", "list", f"{topic}/#")


def test_session_list_show_and_kill(
    mqtt: MqttBroker, client: ClientFactory, topic: str, unique: Callable[[str], str]
) -> None:
    name = unique("listed")
    wire = client(V5, name, properties=properties(session_expiry_interval=600))
    wire.subscribe(f"{topic}/#", 1)
    assert name in trunkline(mqtt, "session", "list", name)
    assert f"{topic}/#" in trunkline(mqtt, "session", "show", name)
    trunkline(mqtt, "session", "kill", name, "--yes")
    wire.closed(0x98)
    assert name not in trunkline(mqtt, "session", "list", name)
