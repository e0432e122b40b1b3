"""The command line against a real broker, ours or Apache Kafka: each command does what it says."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer

from tests.integration.server import NO_LISTENERS, RestartableBroker, RunningBroker
from tests.integration.waiting import wait_until
from trunkline.cli.main import cli

PATIENCE_S = 60.0


class Shell:
    """Runs `trunkline …` in this process, for one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {"TRUNKLINE_BOOTSTRAP": bootstrap}

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner().invoke(cli, arguments, input=stdin, env=self.environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:  # the shape differs from command to command
        return json.loads(self(*arguments, "--json", stdin=stdin).stdout)

    def read(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        output = self("consume", topic, "--exit-at-end", "--json", *arguments).stdout
        return [json.loads(line) for line in output.splitlines()]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """The same as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "trunkline", *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def shell(broker: RunningBroker) -> Shell:
    return Shell(broker.bootstrap)


@pytest.fixture
def name(unique: Callable[[str], str]) -> str:
    return unique("cli")


def values(records: Sequence[Mapping[str, Any]]) -> list[object]:
    return [record["value"] for record in records]


# -- topics ------------------------------------------------------------------------------------------------------


def test_a_topic_from_creation_to_deletion(shell: Shell, name: str) -> None:
    assert shell.json("topic", "create", name, "-p", "2", "-c", "retention.ms=86400000") == {
        "topic": name,
        "created": True,
    }
    assert name in [item["topic"] for item in shell.json("topic", "list")]
    assert name in shell("topic", "list").stdout

    described = shell.json("topic", "describe", name)
    assert [item["partition"] for item in described["partitions"]] == [0, 1]
    assert described["config"]["retention.ms"] == "86400000"

    shell("topic", "alter", name, "-p", "3", "-c", "segment.bytes=2097152", "--delete-config", "retention.ms")

    def altered() -> bool:
        now = shell.json("topic", "describe", name)
        return len(now["partitions"]) == 3 and set(now["config"]) & {"retention.ms", "segment.bytes"} == {
            "segment.bytes"
        }

    wait_until(altered, PATIENCE_S)
    assert "segment.bytes" in shell("topic", "describe", name, "--all").stdout

    assert shell.json("topic", "delete", name, "--yes") == {"deleted": [name]}
    wait_until(lambda: name not in [item["topic"] for item in shell.json("topic", "list")], PATIENCE_S)


def test_creating_a_topic_twice_is_an_error_unless_it_is_accepted(shell: Shell, name: str) -> None:
    shell("topic", "create", name)
    again = shell("topic", "create", name, code=1)
    assert again.stderr.startswith("error: ")
    assert "TOPIC_ALREADY_EXISTS" in again.stderr
    assert "--if-not-exists" in again.stderr
    assert shell.json("topic", "create", name, "--if-not-exists") == {"topic": name, "created": False}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topic", "describe", "{}"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topic", "alter", "{}", "-p", "3"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topic", "delete", "{}", "--yes"), "there is no topic"),
        (("topic", "create", "{}", "-c", "nonsense=1"), "INVALID_CONFIG"),
        (("topic", "create", "in/valid"), "INVALID_TOPIC_EXCEPTION"),
        (("consume", "{}"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("group", "describe", "{}"), "GROUP_ID_NOT_FOUND"),
        (("group", "reset", "{}", "--to", "earliest"), "GROUP_ID_NOT_FOUND"),
        (("group", "delete", "{}", "--yes"), "GROUP_ID_NOT_FOUND"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else "",
)
def test_what_is_not_there_is_one_line_with_a_hint(
    shell: Shell, name: str, arguments: tuple[str, ...], words: str
) -> None:
    result = shell(*(item.format(name) for item in arguments), code=1)
    error, *hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert len(hint) == 1
    assert result.stdout == ""


def test_deleting_asks_first(shell: Shell, name: str) -> None:
    shell("topic", "create", name)
    shell("topic", "delete", name, stdin=b"n\n", code=1)
    assert name in [item["topic"] for item in shell.json("topic", "list")]
    shell("topic", "delete", name, stdin=b"y\n")


# -- records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed_and_readable_by_other_clients(
    shell: Shell, broker: RunningBroker, name: str, codec: str
) -> None:
    shell("topic", "create", name)
    lines = b"alice\t1\nbob\t\xff\xfe\ncarol\tNULL\ndave\t\n"
    sent = shell.json(
        "produce", name, "-K", "\\t", "--null-value", "NULL", "-H", "from=test", "-H", "n=2", "-z", codec, stdin=lines
    )
    assert (sent["records"], sent["last_offsets"]) == (4, {"0": 3})

    records = shell.read(name, "--from-beginning")
    assert [(item["key"], item["value"]) for item in records] == [
        ("alice", "1"),
        ("bob", {"base64": "//4="}),
        ("carol", None),
        ("dave", ""),
    ]
    assert records[0]["headers"] == [["from", "test"], ["n", "2"]]
    plain = shell("consume", name, "--from-beginning", "-e", "--null", "-", "--format", "%p:%o %k=%v").stdout_bytes
    assert plain == b"0:0 alice=1\n0:1 bob=\xff\xfe\n0:2 carol=-\n0:3 dave=\n"

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    found = consumer.consume(4, PATIENCE_S)
    consumer.close()
    assert [(message.key(), message.value()) for message in found] == [
        (b"alice", b"1"),
        (b"bob", b"\xff\xfe"),
        (b"carol", None),
        (b"dave", b""),
    ]
    assert found[0].headers() == [("from", b"test"), ("n", b"2")]


def test_what_another_client_compresses_is_read(shell: Shell, broker: RunningBroker, name: str) -> None:
    shell("topic", "create", name)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
        for number in range(20):
            producer.produce(name, key=codec, value=f"{codec}-{number}" * 20, partition=0)
        assert producer.flush(PATIENCE_S) == 0
    expected = [f"{codec}-{number}" * 20 for codec in ("none", "gzip", "snappy", "lz4", "zstd") for number in range(20)]
    assert values(shell.read(name, "--from-beginning")) == expected


def test_keys_go_to_the_partition_that_librdkafka_s_murmur2_chooses(
    shell: Shell, broker: RunningBroker, name: str
) -> None:
    shell("topic", "create", name, "-p", "7")
    keys = [f"key-{number}" for number in range(50)]
    shell("produce", name, "-K", ":", stdin="".join(f"{key}:ours\n" for key in keys).encode())
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(name, key=key, value="theirs")
    assert producer.flush(PATIENCE_S) == 0
    places: dict[str, set[int]] = {}
    for record in shell.read(name, "--from-beginning"):
        places.setdefault(record["key"], set()).add(record["partition"])
    assert set(places) == set(keys)
    assert all(len(found) == 1 for found in places.values())


def test_where_reading_starts_and_stops(shell: Shell, name: str) -> None:
    shell("topic", "create", name)
    shell("produce", name, stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert values(shell.read(name, "--offset", "7")) == ["7", "8", "9"]
    assert values(shell.read(name, "--offset", "-2")) == ["8", "9"]
    assert values(shell.read(name, "--offset", "-100")) == [str(number) for number in range(10)]
    assert values(shell.read(name, "--offset", "earliest", "--max", "3")) == ["0", "1", "2"]
    assert values(shell.read(name, "--since", "1h")) == [str(number) for number in range(10)]
    assert values(shell.read(name, "--since", "2100-01-01")) == []
    assert values(shell.read(name)) == []
    assert shell("consume", name, "--from-beginning", "--timeout", "0.2", "-f", "%o").stdout.split() == [
        str(number) for number in range(10)
    ]


def test_one_partition_of_several(shell: Shell, name: str) -> None:
    shell("topic", "create", name, "-p", "3")
    for partition in range(3):
        shell("produce", name, "-p", str(partition), stdin=b"to %d\n" % partition)
    assert values(shell.read(name, "--from-beginning", "-p", "1")) == ["to 1"]
    assert sorted(map(str, values(shell.read(name, "--from-beginning")))) == ["to 0", "to 1", "to 2"]
    shell("consume", name, "-p", "3", code=1)
    shell("produce", name, "-p", "3", stdin=b"x\n", code=1)


def test_a_file_is_sent_line_by_line(shell: Shell, name: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"line {number}\n" for number in range(5000)))
    shell("topic", "create", name, "-p", "2")
    assert "5000 records sent" in shell("produce", name, "--file", str(path), "-z", "lz4").stderr
    records = shell.read(name, "--from-beginning")
    assert sorted(map(str, values(records))) == sorted(path.read_text().splitlines())


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(shell: Shell, name: str, acks: str) -> None:
    shell("topic", "create", name)
    shell("produce", name, "--acks", acks, stdin=b"a\nb\n")
    wait_until(lambda: values(shell.read(name, "--from-beginning")) == ["a", "b"], PATIENCE_S)


def test_a_record_that_is_too_large_is_explained(shell: Shell, name: str) -> None:
    shell("topic", "create", name, "-c", "max.message.bytes=1000")
    refused = shell("produce", name, stdin=b"x" * 5000, code=1)
    assert "MESSAGE_TOO_LARGE" in refused.stderr
    assert "max.message.bytes" in refused.stderr


def test_a_topic_is_created_by_the_first_record(shell: Shell, name: str) -> None:
    shell("produce", name, stdin=b"first\n")
    assert values(shell.read(name, "--from-beginning")) == ["first"]


def test_aborted_transactions_are_hidden_when_asked(shell: Shell, broker: RunningBroker, name: str) -> None:
    shell("topic", "create", name)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    for word, end in (
        ("kept", producer.commit_transaction),
        ("dropped", producer.abort_transaction),
        ("kept too", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(name, value=word)
        assert producer.flush(PATIENCE_S) == 0
        end(PATIENCE_S)
    assert values(shell.read(name, "--from-beginning", "--committed")) == ["kept", "kept too"]
    assert values(shell.read(name, "--from-beginning")) == ["kept", "dropped", "kept too"]


def test_a_line_is_read_as_soon_as_it_is_typed(shell: Shell, name: str) -> None:
    shell("topic", "create", name)
    consumer = shell.start("consume", name, "--from-beginning")
    producer = shell.start("produce", name)
    assert producer.stdin is not None
    assert consumer.stdout is not None
    try:
        for word in (b"one\n", b"two\n"):
            producer.stdin.write(word)
            producer.stdin.flush()
            assert consumer.stdout.readline() == word
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(PATIENCE_S) == 0
        producer.stdin.write(b"three")
        producer.stdin.close()
        assert producer.wait(PATIENCE_S) == 0
        assert values(shell.read(name, "--from-beginning")) == ["one", "two", "three"]
    finally:
        for process in (consumer, producer):
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                assert stream is not None
                if not stream.closed:
                    stream.close()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("from_file", [False, True])
def test_producing_that_is_interrupted_says_how_far_it_came(
    shell: Shell, name: str, tmp_path: Path, signum: signal.Signals, code: int, from_file: bool
) -> None:
    shell("topic", "create", name)
    lines = tmp_path / "lines"
    os.mkfifo(lines)
    producer = shell.start("produce", name, *(("--file", str(lines)) if from_file else ()))
    assert producer.stdin is not None
    with producer, lines.open("wb") if from_file else producer.stdin as source:
        source.write(b"one\ntwo\nthree\nhalf a li")
        source.flush()
        wait_until(lambda: len(shell.read(name, "--from-beginning")) == 3, PATIENCE_S)
        producer.send_signal(signum)
        assert producer.wait(PATIENCE_S) == code
        assert producer.stderr is not None
        assert producer.stderr.read().decode() == f"3 records to {name} acknowledged before the interruption\n"
    assert values(shell.read(name, "--from-beginning")) == ["one", "two", "three"]


def test_a_reader_that_goes_away_ends_consuming_though_nothing_more_comes(shell: Shell, name: str) -> None:
    shell("produce", name, stdin=b"one\ntwo\n")
    with shell.start("consume", name, "--from-beginning") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        process.wait(PATIENCE_S)
        assert process.stderr.read() == b""


def test_a_reader_that_goes_away_ends_consuming_quietly(shell: Shell, name: str) -> None:
    shell("topic", "create", name)
    shell("produce", name, stdin=b"x" * 99 + b"\n" + b"y\n" * 100_000)
    process = shell.start("consume", name, "--from-beginning")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x" * 99 + b"\n"
        process.stdout.close()
        process.wait(PATIENCE_S)
        assert process.stderr.read() == b""


# -- groups ------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(shell: Shell, name: str) -> str:
    """A topic with 10 records on each of two partitions."""
    shell("topic", "create", name, "-p", "2")
    for partition in range(2):
        shell("produce", name, "-p", str(partition), stdin=b"".join(b"%d\n" % number for number in range(10)))
    return name


def test_a_group_goes_on_where_it_stopped(shell: Shell, filled: str) -> None:
    first = shell.read(filled, "-g", filled, "--from-beginning", "--max", "7")
    rest = shell.read(filled, "-g", filled)
    assert len(first) == 7
    places = [(record["partition"], record["offset"]) for record in first + rest]
    assert sorted(places) == [(partition, offset) for partition in range(2) for offset in range(10)]
    assert shell.read(filled, "-g", filled) == []

    described = shell.json("group", "describe", filled)
    assert (described["state"].lower(), described["type"], described["lag"]) == ("empty", "consumer", 0)
    assert [(item["partition"], item["committed"], item["end"]) for item in described["partitions"]] == [
        (0, 10, 10),
        (1, 10, 10),
    ]
    assert filled in [item["group"] for item in shell.json("group", "list")]
    shell("produce", filled, "-p", "0", stdin=b"more\n")
    assert shell.json("group", "describe", filled)["lag"] == 1
    assert "lag 1" in shell("group", "describe", filled).stdout


def test_a_group_is_moved_when_it_has_no_members(shell: Shell, filled: str) -> None:
    shell.read(filled, "-g", filled, "--from-beginning")

    def committed() -> dict[int, int]:
        return {item["partition"]: item["committed"] for item in shell.json("group", "describe", filled)["partitions"]}

    planned = shell.json("group", "reset", filled, "--to", "earliest", "--dry-run")
    assert [(item["before"], item["after"]) for item in planned["partitions"]] == [(10, 0), (10, 0)]
    assert committed() == {0: 10, 1: 10}
    for arguments, expected in (
        (("--to", "earliest"), {0: 0, 1: 0}),
        (("--to", "latest"), {0: 10, 1: 10}),
        (("--shift", "-4", "--topic", f"{filled}:1"), {0: 10, 1: 6}),
        (("--shift", "-100"), {0: 0, 1: 0}),
        (("--to", "3", "--topic", filled), {0: 3, 1: 3}),
        (("--since", "2100-01-01"), {0: 10, 1: 10}),
        (("--since", "1h"), {0: 0, 1: 0}),
    ):
        shell("group", "reset", filled, *arguments)
        assert committed() == expected, arguments
    assert len(shell.read(filled, "-g", filled)) == 20

    shell("group", "delete", filled, "--yes")
    wait_until(lambda: filled not in [item["group"] for item in shell.json("group", "list")], PATIENCE_S)


def test_a_group_can_be_placed_before_it_first_reads(shell: Shell, filled: str) -> None:
    shell("group", "reset", filled, "--to", "8", "--topic", filled)
    assert sorted(map(str, values(shell.read(filled, "-g", filled)))) == ["8", "8", "9", "9"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_other_clients_are_shown_and_protected(
    shell: Shell, broker: RunningBroker, filled: str, protocol: str
) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": filled,
        "group.protocol": protocol,
        "client.id": "tester",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe([filled])
    assert consumer.consume(20, PATIENCE_S)
    consumer.commit(asynchronous=False)

    described = shell.json("group", "describe", filled)
    assert described["type"] == protocol
    (member,) = described["members"]
    assert member["client"] == "tester"
    assert sorted(item["partition"] for item in member["partitions"]) == [0, 1]
    assert {item["member"] for item in described["partitions"]} == {member["member"]}
    refused = shell("group", "reset", filled, "--to", "earliest", code=1)
    assert "has 1 member" in refused.stderr
    assert "NON_EMPTY_GROUP" in shell("group", "delete", filled, "--yes", code=1).stderr

    consumer.close()
    shell("group", "reset", filled, "--to", "earliest")
    assert len(shell.read(filled, "-g", filled)) == 20


def test_two_consumers_of_a_group_share_and_take_over(shell: Shell, filled: str) -> None:
    """Every record is printed once, by one or the other, across a join and a leave."""
    first = shell.start("consume", filled, "-g", filled, "--from-beginning", "-f", "%p:%o")
    second: subprocess.Popen[bytes] | None = None
    try:
        assert first.stdout is not None
        seen = [first.stdout.readline() for _ in range(20)]
        second = shell.start("consume", filled, "-g", filled, "-f", "%p:%o")

        def owners() -> list[int]:
            return sorted(len(item["partitions"]) for item in shell.json("group", "describe", filled)["members"])

        wait_until(lambda: owners() == [1, 1], PATIENCE_S)
        first.send_signal(signal.SIGTERM)
        rest, errors = first.communicate(timeout=PATIENCE_S)
        assert (first.returncode, errors) == (0, b"")
        wait_until(lambda: owners() == [2], PATIENCE_S)
        for partition in range(2):
            shell("produce", filled, "-p", str(partition), stdin=b"late\n")
        assert second.stdout is not None
        seen += rest.splitlines(keepends=True) + [second.stdout.readline() for _ in range(2)]
        expected = [f"{partition}:{offset}\n".encode() for partition in range(2) for offset in range(11)]
        assert sorted(seen) == sorted(expected)
        # A record counts as handled a moment after it is printed; a signal in that moment would leave it uncommitted.
        wait_until(lambda: shell.json("group", "describe", filled)["lag"] == 0, PATIENCE_S)
        second.send_signal(signal.SIGINT)
        rest, errors = second.communicate(timeout=PATIENCE_S)
        assert (second.returncode, rest, errors) == (0, b"", b"")
    finally:
        for process in filter(None, (first, second)):
            if process.poll() is None:
                process.kill()
                process.communicate()


# -- serve -------------------------------------------------------------------------------------------------------


def serve(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "trunkline", "serve", "--amqp-port", "off", "--mqtt-port", "off", *arguments],
        env={**os.environ, **NO_LISTENERS},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stderr


def test_serve_prints_where_it_is_and_what_to_type_first(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "trunkline", "serve", "--kafka-port", "0", "--amqp-port", "off", "--mqtt-port", "off", "--data", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready")],
        env={**os.environ, **NO_LISTENERS},
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        wait_until((tmp_path / "ready").exists, PATIENCE_S)
        ready = json.loads((tmp_path / "ready").read_text())
        assert ready["pid"] == process.pid
        shell = Shell(ready["kafka"])
        shell("produce", "greetings", stdin=b"hello\n")
        assert values(shell.read("greetings", "--from-beginning")) == ["hello"]
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert ready["kafka"] in printed
    assert str(tmp_path / "data") in printed
    assert re.search(rf"echo hello \| .*trunkline produce greetings --bootstrap {re.escape(ready['kafka'])}", printed)
    assert "Traceback" not in printed


def test_serve_says_that_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, printed = serve("--kafka-port", str(port), "--data", str(tmp_path))
    assert code == 1
    assert printed.splitlines()[0] == f"error: 127.0.0.1:{port} is in use by another process"
    assert "--kafka-port" in printed
    assert "Traceback" not in printed


@pytest.mark.ours_only("Apache Kafka is not started by our command")
def test_serve_says_that_the_data_directory_is_taken(fresh_broker: RestartableBroker) -> None:
    code, printed = serve("--kafka-port", "0", "--data", str(fresh_broker.data))
    assert code == 1
    assert printed.startswith(
        f"error: {fresh_broker.data}: the data directory is in use by the process with pid {fresh_broker.pid}"
    )
    assert "--data" in printed
    assert "Traceback" not in printed


def test_serve_says_that_the_data_directory_is_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    code, printed = serve("--kafka-port", "0", "--data", str(path))
    assert (code, printed) == (1, f"error: {path} is a file, not a directory\n       choose a directory with --data\n")
    code, printed = serve("--kafka-port", "0", "--data", str(path / "below" / "it"))
    assert printed.startswith(f"error: {path} is a file, not a directory\n")
    assert code == 1


def test_serve_names_the_setting_that_is_wrong(tmp_path: Path) -> None:
    for arguments, hint in (
        (("--ready-file", str(tmp_path / "absent" / "ready")), "--ready-file"),
        (("--host", "no-such-host.invalid"), "--host"),
    ):
        code, printed = serve("--kafka-port", "0", "--data", str(tmp_path / "data"), *arguments)
        assert code == 1
        error, *hints = [line for line in printed.splitlines() if " INFO " not in line]
        assert error.startswith("error: ")
        assert hint in hints[-1]


@pytest.mark.ours_only("looks into our data directory")
def test_the_segments_of_a_running_broker_can_be_looked_into(fresh_broker: RestartableBroker) -> None:
    shell = Shell(fresh_broker.bootstrap)
    shell("produce", "dumped", "-K", ":", "-z", "zstd", stdin=b"a:1\nb:2\n")
    (segment,) = (fresh_broker.data / "dumped-0").glob("*.log")
    (batch,) = [json.loads(line) for line in shell("log", "dump", "-r", "--json", str(segment)).stdout.splitlines()]
    assert (batch["base_offset"], batch["count"], batch["codec"], batch["crc_ok"]) == (0, 2, "zstd", True)
    assert [(record["key"], record["value"]) for record in batch["records"]] == [("a", "1"), ("b", "2")]
