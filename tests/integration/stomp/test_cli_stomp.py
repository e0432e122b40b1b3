"""`trunkline stomp` against a broker in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.integration.stomp.conftest import Ours
from tests.integration.stomp.wire import Wire

pytestmark = pytest.mark.ours_only("the command line is ours")

TIMEOUT_S = 60


def start(broker: Ours, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trunkline", "stomp", *arguments, "--url", f"127.0.0.1:{broker.stomp_port}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(broker: Ours, *arguments: str, text: bytes = b"", code: int = 0) -> str:
    process = start(broker, *arguments)
    out, err = process.communicate(text, timeout=TIMEOUT_S)
    assert process.returncode == code, err.decode()
    return out.decode() if code == 0 else err.decode()


def test_what_is_sent_is_printed(stomp: Ours, queue: str) -> None:
    run(stomp, "send", queue, "one", "-H", "colour=red")
    run(stomp, "send", queue, "--lines", text=b"two\nthree\n")
    assert json.loads(run(stomp, "send", queue, "--json", text=b"four")) == {"destination": queue, "messages": 1}
    (first,) = run(stomp, "subscribe", queue, "--max", "1", "--json").splitlines()
    assert json.loads(first)["headers"]["colour"] == "red"
    assert json.loads(first)["body"] == "one"
    assert run(stomp, "subscribe", queue, "--timeout", "0.5").splitlines() == ["two", "three", "four"]
    assert run(stomp, "subscribe", queue, "--timeout", "0.2") == ""


def test_a_selector_chooses(stomp: Ours, queue: str) -> None:
    run(stomp, "send", queue, "red", "-H", "colour=red")
    run(stomp, "send", queue, "blue", "-H", "colour=blue")
    assert run(stomp, "subscribe", queue, "--selector", "colour = 'blue'", "--max", "1") == "blue\n"


def test_a_subscription_ends_cleanly_with_sigterm(stomp: Ours, queue: str) -> None:
    process = start(stomp, "subscribe", queue)
    with Wire(stomp.stomp_port) as wire:
        wire.connect()
        wire.ask("SEND", b"x", destination=queue)
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    process.communicate()


def test_what_the_broker_refuses_is_told_in_its_words(stomp: Ours) -> None:
    said = run(stomp, "send", "/nowhere/x", "y", code=1)
    assert "is not a valid destination" in said
    assert "Traceback" not in said
