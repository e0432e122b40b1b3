"""`trunkline mqtt`, `session` and `retained` against a broker in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

pytestmark = pytest.mark.ours_only("the command line asks the broker's management, which is ours")

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("mqtt-cli"))
    process.start()
    yield process
    process.stop()


class Commands:
    def __init__(self, port: int) -> None:
        self._url = f"127.0.0.1:{port}"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trunkline", *arguments, "--url", self._url]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *arguments: str, text: bytes = b"", code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(text, timeout=TIMEOUT_S)
        assert process.returncode == code, err.decode()
        return out.decode() if code == 0 else err.decode()


@pytest.fixture
def commands(server: ServerProcess) -> Commands:
    return Commands(server.port_of("mqtt"))


def test_messages_kept_for_a_session_are_printed_when_it_comes_back(commands: Commands) -> None:
    keep = ("--keep", "--client-id", "night-watch", "--qos", "2")
    assert commands.run("mqtt", "sub", "alarms/#", *keep, "--timeout", "0.2") == ""
    commands.run("mqtt", "pub", "alarms/1", "one", "--qos", "1")
    commands.run("mqtt", "pub", "alarms/2", "--qos", "2", "--lines", text=b"two\nthree\n")
    out = commands.run("mqtt", "sub", "alarms/#", *keep, "--max", "3", "-v")
    assert out.splitlines() == ["alarms/1 one", "alarms/2 two", "alarms/2 three"]
    assert commands.run("mqtt", "sub", "alarms/#", *keep, "--timeout", "0.2") == ""


def test_sessions_are_listed_shown_and_ended(commands: Commands) -> None:
    commands.run("mqtt", "sub", "a/+", "b/#", "--qos", "1", "--keep", "--client-id", "listed", "--timeout", "0.1")
    listed = {entry["client_id"]: entry for entry in json.loads(commands.run("session", "list", "--json"))}
    assert listed["listed"]["subscription_count"] == 2
    assert not listed["listed"]["connected"]
    commands.run("mqtt", "pub", "a/b", "x", "--qos", "1")
    shown = json.loads(commands.run("session", "show", "listed", "--json"))
    assert [each["filter"] for each in shown["subscriptions"]] == ["a/+", "b/#"]
    assert shown["records_behind"] == 1
    assert "listed" in commands.run("session", "list", "list")
    commands.run("session", "kill", "listed", "--yes")
    assert "there is no session listed" in commands.run("session", "show", "listed", code=1)


def test_retained_messages_are_listed_and_cleared(commands: Commands) -> None:
    for name in ("config/1", "config/2", "other"):
        commands.run("mqtt", "pub", name, "value", "--retain", "--qos", "1")
    listed = json.loads(commands.run("retained", "list", "config/+", "--json"))
    assert [(entry["topic"], entry["bytes"]) for entry in listed] == [("config/1", 5), ("config/2", 5)]
    commands.run("retained", "clear", "config/#", "--yes")
    assert [entry["topic"] for entry in json.loads(commands.run("retained", "list", "--json"))] == ["other"]
    commands.run("mqtt", "pub", "other", "", "--retain")
    assert json.loads(commands.run("retained", "list", "--json")) == []


def test_json_has_the_properties_of_a_message(commands: Commands) -> None:
    subscriber = commands.start("mqtt", "sub", "described", "$SYS/broker/version", "--max", "2", "--json")
    assert subscriber.stdout is not None
    assert json.loads(subscriber.stdout.readline())["topic"] == "$SYS/broker/version"  # so it is subscribed
    commands.run("mqtt", "pub", "described", "{}", "-p", "a=1", "--content-type", "application/json", "--expiry", "60")
    out, err = subscriber.communicate(timeout=TIMEOUT_S)
    assert subscriber.returncode == 0, err.decode()
    message = json.loads(out)
    assert message["properties"] == [["a", "1"]]
    assert message["content_type"] == "application/json"
    assert 58 <= message["expiry_s"] <= 60


def test_errors_say_what_is_wrong(commands: Commands, tmp_path: Path) -> None:
    assert "topic filter invalid" in commands.run("mqtt", "sub", "a/#/b", "--timeout", "1", code=1)
    assert "not authorized" in commands.run("mqtt", "pub", "$SYS/x", "y", "--qos", "1", code=1)
    refused = subprocess.run(
        [sys.executable, "-m", "trunkline", "mqtt", "pub", "t", "x", "--url", "127.0.0.1:1"],
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=tmp_path,
    )
    assert refused.returncode == 1
    assert b"trunkline serve" in refused.stderr


def test_what_is_refused_at_qos_0_is_an_error_too(commands: Commands) -> None:
    assert "0x90" in commands.run("mqtt", "pub", "a/" * 200 + "a", "x", code=1)
    assert "0x87" in commands.run("mqtt", "pub", "$SYS/forged", "x", code=1)
    assert "0x87" in commands.run("mqtt", "pub", "$SYS/forged", "x", "--qos", "1", code=1)


def test_every_answer_can_be_json(commands: Commands) -> None:
    assert json.loads(commands.run("mqtt", "pub", "json/a", "x", "--retain", "--json")) == {
        "topic": "json/a",
        "messages": 1,
        "complete": True,
    }
    assert json.loads(commands.run("retained", "clear", "json/a", "--json")) == {"cleared": 1}
    commands.run("mqtt", "sub", "a", "--keep", "--client-id", "ended-in-json", "--timeout", "0.1")
    assert json.loads(commands.run("session", "kill", "ended-in-json", "--yes", "--json")) == {
        "ended": ["ended-in-json"]
    }


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_publishing_lines_that_is_interrupted_says_how_far_it_came(
    commands: Commands, signum: signal.Signals, code: int
) -> None:
    subscriber = commands.start("mqtt", "sub", "lines", "--max", "2", "--keep", "--client-id", f"lines-{code}")
    publisher = commands.start("mqtt", "pub", "lines", "--lines", "--qos", "1")
    with subscriber, publisher:
        assert subscriber.stdout is not None
        assert publisher.stdin is not None
        assert publisher.stderr is not None
        wait_until(lambda: f"lines-{code}" in commands.run("session", "list"))
        publisher.stdin.write(b"one\ntwo\nhalf a li")
        publisher.stdin.flush()
        assert [subscriber.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        publisher.send_signal(signum)
        assert publisher.wait(TIMEOUT_S) == code
        assert publisher.stderr.read() == b"published 2 messages before the interruption\n"


def test_a_reader_that_goes_away_ends_subscribing_though_nothing_more_comes(commands: Commands) -> None:
    commands.run("mqtt", "pub", "gone/a", "x", "--retain", "--qos", "1")
    with commands.start("mqtt", "sub", "gone/#") as subscriber:
        assert subscriber.stdout is not None
        assert subscriber.stderr is not None
        assert subscriber.stdout.readline() == b"x\n"
        subscriber.stdout.close()
        assert subscriber.wait(TIMEOUT_S) == 0
        assert subscriber.stderr.read() == b""
