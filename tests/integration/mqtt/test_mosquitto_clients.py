"""The command-line clients mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.integration.mqtt.brokers import HOST, MqttBroker
from tests.integration.mqtt.conftest import ClientFactory

TIMEOUT_SECONDS = 20.0

pytestmark = pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="needs mosquitto-clients")


def command(program: str, broker: MqttBroker, version: str, *arguments: str) -> list[str]:
    return [program, "-h", HOST, "-p", str(broker.port), "-V", version, *arguments]


def publish(broker: MqttBroker, version: str, *arguments: str, given: str = "") -> None:
    done = subprocess.run(
        command("mosquitto_pub", broker, version, *arguments),
        input=given, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_what_pub_sends_sub_prints(mqtt: MqttBroker, topic: str, version: str, qos: str) -> None:
    publish(mqtt, version, "-t", f"{topic}/ready", "-m", "ready", "-r", "-q", "1")
    arguments = ["-t", f"{topic}/#", "-q", qos, "-C", "4", "-F", "%t %q %p"]
    with subprocess.Popen(
        command("mosquitto_sub", mqtt, version, *arguments), stdout=subprocess.PIPE, text=True
    ) as subscriber:
        assert subscriber.stdout is not None
        try:
            # The retained message shows that the subscription stands.
            assert subscriber.stdout.readline().startswith(f"{topic}/ready")
            publish(mqtt, version, "-t", f"{topic}/a", "-q", qos, "-l", given="one\ntwo\nthree\n")
            lines, _ = subscriber.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            subscriber.kill()
    assert lines.splitlines() == [f"{topic}/a {qos} {word}" for word in ("one", "two", "three")]


def test_properties_and_expiry_of_5_0(mqtt: MqttBroker, topic: str) -> None:
    properties = ["-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "k", "v"]
    publish(mqtt, "mqttv5", "-t", topic, "-m", "kept", "-r", "-q", "1", *properties)
    printed = subprocess.run(
        command("mosquitto_sub", mqtt, "mqttv5", "-t", topic, "-q", "1", "-C", "1", "-F", "%r %C %P %p"),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    assert printed.stdout.strip() == "1 text/plain k:v kept"


def test_a_kept_session(mqtt: MqttBroker, topic: str, unique: Callable[[str], str]) -> None:
    arguments = ["-t", topic, "-q", "1", "-i", unique("sub"), "-c"]
    subprocess.run(command("mosquitto_sub", mqtt, "mqttv311", *arguments, "-E"), timeout=TIMEOUT_SECONDS, check=True)
    publish(mqtt, "mqttv311", "-t", topic, "-q", "1", "-l", given="one\ntwo\n")
    printed = subprocess.run(
        command("mosquitto_sub", mqtt, "mqttv311", *arguments, "-C", "2"),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True,
    )  # fmt: skip
    assert printed.stdout.split() == ["one", "two"]


def test_request_and_response(mqtt: MqttBroker, client: ClientFactory, topic: str) -> None:
    if shutil.which("mosquitto_rr") is None:
        pytest.skip("needs mosquitto_rr")
    responder = client(5)
    responder.subscribe(f"{topic}/request", 1)
    asking = command("mosquitto_rr", mqtt, "mqttv5", "-t", f"{topic}/request", "-e", f"{topic}/answer", "-m", "2+2")
    with subprocess.Popen([*asking, "-q", "1"], stdout=subprocess.PIPE, text=True) as process:
        try:
            request = responder.take()
            assert request.properties is not None
            assert request.properties.response_topic == f"{topic}/answer"
            responder.publish(request.properties.response_topic, b"4", 1)
            printed, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert printed.strip() == "4"
