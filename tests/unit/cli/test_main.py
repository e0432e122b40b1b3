"""The command itself: help, errors and exit codes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.unit.client.fake_broker import FakeBroker
from trunkline.cli import main
from trunkline.cli.main import cli
from trunkline.version import VERSION


@pytest.fixture(autouse=True)
def away_from_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration file or variable of the machine reaches the tests."""
    empty = tmp_path_factory.mktemp("home")
    monkeypatch.chdir(empty)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(empty))
    for name in [name for name in os.environ if name.startswith("TRUNKLINE_")]:
        monkeypatch.delenv(name)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        if name == "bench":  # tested with the bench
            continue
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("consum", "No such command 'consum'. Did you mean 'consume'?"), ("xyz", "No such command 'xyz'.\n")],
)
def test_a_mistyped_command_is_told_what_was_perhaps_meant(typed: str, answer: str) -> None:
    done = CliRunner().invoke(cli, [typed, "greetings"])
    assert done.exit_code == 2
    assert answer in done.output


def test_help_names_every_command_and_imports_none() -> None:
    script = (
        "import sys\nfrom trunkline.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "loaded = [name for name in sys.modules if name.startswith('trunkline.') or name.split('.')[0] in ('rich', 'asyncio')]\n"
        "print(','.join(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    *_, loaded = done.stdout.splitlines()
    for name in main._COMMANDS:
        assert f"  {name} " in done.stdout
    assert set(loaded.split(",")) == {
        "trunkline.cli",
        "trunkline.cli.main",
        "trunkline.cli.errors",
        "trunkline.compiled",
        "trunkline.version",
    }


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_every_command_has_help_and_the_runnable_ones_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0, result.output
    runnable = "COMMAND [ARGS]" not in result.output
    assert not runnable or f"trunkline {' '.join(path)}" in result.output.split("\n", 2)[2] or path == ("version",)


def test_version() -> None:
    assert VERSION in CliRunner().invoke(cli, ["--version"]).output
    assert json.loads(CliRunner().invoke(cli, ["version", "--json"]).output)["trunkline"] == VERSION


def test_no_broker_is_one_line_and_a_hint_with_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = CliRunner().invoke(cli, ["topic", "list", "--bootstrap", f"127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == f"error: no broker answers at 127.0.0.1:{port}"
    assert "trunkline serve" in result.stderr.splitlines()[1]
    assert result.stdout == ""


ADDRESSED = [
    (["topic", "list"], "--bootstrap", "Kafka"),
    (["produce", "t"], "--bootstrap", "Kafka"),
    (["queue", "list"], "--url", "AMQP"),
    (["publish", "q", "x"], "--url", "AMQP"),
    (["mqtt", "pub", "t", "x"], "--url", "MQTT"),
    (["session", "list"], "--url", "MQTT"),
]


@pytest.mark.parametrize(("arguments", "option", "protocol"), ADDRESSED)
def test_the_hint_names_the_option_that_the_command_has(arguments: list[str], option: str, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = CliRunner().invoke(cli, [*arguments, option, f"127.0.0.1:{port}"])
    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert f"127.0.0.1:{port}" in error
    assert "trunkline serve" in hint
    assert f"{option} " in hint


@pytest.mark.parametrize("answer", [b"", b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
@pytest.mark.parametrize(("arguments", "option", "protocol"), ADDRESSED)
def test_something_else_on_the_port_is_named(arguments: list[str], option: str, protocol: str, answer: bytes) -> None:
    with OtherProtocol(answer) as port:
        asked = [*arguments, option, f"127.0.0.1:{port}", "--request-timeout", "1"]
        result = CliRunner().invoke(cli, asked, input=b"x\n")
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert len(result.stderr.splitlines()) <= 2
    if answer == b"" or protocol != "AMQP":
        assert f"{protocol} listener? name one with {option}" in result.stderr


class OtherProtocol:
    """Answers everyone who connects in the same words, and closes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(self._answer)


def test_ctrl_c_ends_a_command_as_a_shell_expects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trunkline.client.topics.Topics.__init__", interrupted)
    with FakeBroker(topics={"t": 1}) as broker:
        result = CliRunner().invoke(cli, ["topic", "describe", "t", "--bootstrap", broker.bootstrap])
    assert result.exit_code == 130
    assert result.output.strip() == ""


def test_a_misspelt_variable_is_a_warning_of_every_command_that_reads_settings() -> None:
    with FakeBroker(topics={"t": 1}) as broker:
        for arguments in (["topic", "list"], ["config", "show"]):
            environment = {"TRUNKLINE_BOOTSTRAP": broker.bootstrap, "TRUNKLINE_KAFKA_PROT": "1"}
            result = CliRunner().invoke(cli, arguments, env=environment)
            assert result.exit_code == 0, result.output
            warning = (
                "warning: TRUNKLINE_KAFKA_PROT in the environment is not a setting; did you mean TRUNKLINE_KAFKA_PORT?"
            )
            assert result.stderr.splitlines() == [warning]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "create", "t", "--config", "novalue"],
        ["topic", "alter", "t"],
        ["consume", "t", "--from-beginning", "--since", "1h"],
        ["consume", "t", "--offset", "middle"],
        ["consume", "t", "--since", "yesterday"],
        ["consume", "t", "--format", "%z"],
        ["consume", "t", "--group", "g", "--partition", "0"],
        ["consume", "t", "--group", "g", "--offset", "5"],
        ["produce", "t", "--key", "a", "--key-separator", "b"],
        ["produce", "t", "--acks", "2"],
        ["produce", "t", "--key-separator", ""],
        ["topic", "list", "--bootstrap", ""],
        ["queue", "list", "--url", "127.0.0.1:0"],
        ["mqtt", "sub", "a", "--url", "127.0.0.1:0"],
        ["mqtt", "pub", "a/#", "x"],
        ["mqtt", "pub", "a/+", "x"],
        ["mqtt", "pub", "", "x"],
        ["mqtt", "pub", "a" * 65_536, "x"],
        ["mqtt", "pub", "a", "x", "--response-topic", "b/#"],
        ["group", "reset", "g"],
        ["group", "reset", "g", "--to", "earliest", "--shift", "1"],
        ["serve", "--kafka-port", "none"],
        ["serve", "--topic-config", "retention.sm=1"],
        ["log", "dump", "absent.log"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_a_command_that_is_written_wrongly_exits_with_2(arguments: list[str]) -> None:
    with FakeBroker(topics={"t": 1}) as broker:
        result = CliRunner().invoke(cli, arguments, env={"TRUNKLINE_BOOTSTRAP": broker.bootstrap})
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr


def test_a_wrong_configuration_file_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "mine.toml"
    path.write_text("kafka_prot = 1")
    for arguments in (["config", "show"], ["topic", "list"], ["serve"]):
        result = CliRunner().invoke(cli, ["--config", str(path), *arguments])
        assert result.exit_code == 1, result.output
        assert f"error: file {path}: kafka_prot is not a setting; did you mean kafka_port?" in result.stderr


def test_a_fault_of_our_own_is_not_disguised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("trunkline.cli.options.open_client", broken)
    assert isinstance(CliRunner().invoke(cli, ["topic", "list"]).exception, ZeroDivisionError)


def test_config_show_says_where_each_value_comes_from(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "mine.toml"
    path.write_text('node_id = 4\nkafka_port = "off"\n[topic]\n"retention.ms" = 5\n')
    result = CliRunner().invoke(cli, ["config", "show", "--config", str(path), "--json"], env={"TRUNKLINE_HOST": "::1"})
    shown = json.loads(result.stdout)
    assert shown["node_id"] == {"value": 4, "origin": f"file {path}"}
    assert shown["kafka_port"] == {"value": "off", "origin": f"file {path}"}
    assert shown["host"] == {"value": "::1", "origin": "env TRUNKLINE_HOST"}
    assert shown["topic.retention.ms"] == {"value": "5", "origin": f"file {path}"}
    assert shown["auto_create_topics"] == {"value": True, "origin": "default"}
    plain = CliRunner().invoke(cli, ["--config", str(path), "config", "show"]).stdout.splitlines()
    assert plain[0].split() == ["SETTING", "VALUE", "ORIGIN"]
    assert ["node_id", "4", "file", str(path)] in [line.split() for line in plain]


def test_config_example_is_printed() -> None:
    assert "#kafka_port = 9092" in CliRunner().invoke(cli, ["config", "example"]).stdout


def test_the_configured_broker_is_the_one_that_is_asked() -> None:
    with FakeBroker(topics={"orders": 3}) as broker:
        result = CliRunner().invoke(cli, ["topic", "list"], env={"TRUNKLINE_KAFKA_PORT": str(broker.port)})
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["TOPIC", "PARTITIONS"], ["orders", "3"]]
