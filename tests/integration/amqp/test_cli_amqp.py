"""`trunkline queue`, `exchange`, `binding`, `publish`, `get` and `definitions` against a running broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result

from tests.integration.amqp.brokers import AmqpBroker, Trunkline, url
from tests.integration.amqp.definitions import OTHER_VHOST, password_hash
from trunkline.cli.main import cli

pytestmark = pytest.mark.ours_only("the command line asks the broker's management, which is ours")

Name = Callable[[str], str]


class Shell:
    """Runs `trunkline …` in this process, for one broker."""

    def __init__(self, broker: AmqpBroker, vhost: str = "/") -> None:
        self._url = url(broker, vhost=vhost)

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [*arguments, "--url", self._url], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str) -> Any:  # the shape differs from command to command
        return json.loads(self(*arguments, "--json").stdout)

    def queue(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = [entry for entry in self.json("queue", "list") if entry["name"] == name]
        assert len(found) == 1, found
        return found[0]


@pytest.fixture
def shell(amqp: AmqpBroker) -> Shell:
    return Shell(amqp)


def test_a_queue_from_its_declaration_to_its_deletion(shell: Shell, unique: Name) -> None:
    name = unique("cli")
    assert shell.json("queue", "declare", name, "-a", "x-max-length=5", "-a", "x-queue-type=quorum") == {
        "queue": name,
        "ready": 0,
        "consumers": 0,
    }
    entry = shell.queue(name)
    assert (entry["durable"], entry["arguments"]) == (True, {"x-max-length": 5, "x-queue-type": "quorum"})
    assert name in shell("queue", "list").stdout
    shell("queue", "declare", name, "-a", "x-max-length=6", code=1)
    shell("publish", name, "one")
    shell("publish", name, stdin=b"two")
    assert shell.json("queue", "stats", name)["ready"] == 2
    assert [entry["body"] for entry in shell.json("queue", "peek", name)] == ["one", "two"]
    assert "one" in shell("queue", "peek", name).stdout
    assert shell.json("queue", "purge", name, "--yes") == {"queue": name, "purged": 2}
    assert shell.json("queue", "delete", name, "--yes") == {"deleted": [name], "messages": {name: 0}}
    assert "there is no queue" in shell("queue", "delete", name, "--yes", code=1).stderr
    assert "no queue" in shell("queue", "peek", name, code=1).stderr


def test_messages_are_moved_from_the_dead_letters_back(shell: Shell, unique: Name) -> None:
    name, dead = unique("work"), unique("dead")
    shell("queue", "declare", name)
    shell("queue", "declare", dead)
    for number in range(5):
        shell("publish", dead, f"{number}", "-H", f"n={number}")
    assert shell.json("queue", "move", dead, name, "-n", "2")["moved"] == 2
    assert shell.json("queue", "move", dead, name)["moved"] == 3
    assert (shell.queue(dead)["ready"], shell.queue(name)["ready"]) == (0, 5)
    got = shell.json("get", name, "-n", "10")
    assert [message["body"] for message in got] == ["0", "1", "2", "3", "4"]
    assert [message["properties"]["headers"] for message in got] == [{"n": number} for number in range(5)]
    assert "no message" in shell("get", name).stderr
    shell("queue", "move", name, name, code=1)


def test_a_message_goes_through_an_exchange_and_its_bindings(shell: Shell, unique: Name) -> None:
    exchange, second, queue = unique("x"), unique("y"), unique("q")
    shell("exchange", "declare", exchange, "--type", "topic")
    shell("exchange", "declare", second, "--type", "fanout")
    shell("queue", "declare", queue)
    shell("binding", "add", exchange, second, "-k", "a.#", "--to-exchange")
    shell("binding", "add", second, queue)
    assert exchange in [entry["name"] for entry in shell.json("exchange", "list")]
    assert [(b["source"], b["destination"]) for b in shell.json("binding", "list", "--destination", queue)] == [
        (second, queue)
    ]
    shell("publish", "a.b", "hello", "-e", exchange, "--priority", "3")
    assert "no queue" in shell("publish", "b", "lost", "-e", exchange, code=1).stderr
    assert shell("get", queue).stdout == "hello\n"
    assert "is not bound" in shell("binding", "remove", second, queue, "-k", "another", code=1).stderr
    shell("binding", "remove", second, queue)
    shell("publish", "a.b", "lost", "-e", exchange, code=1)
    shell("exchange", "delete", exchange, second)
    assert "there is no exchange" in shell("exchange", "delete", exchange, code=1).stderr


def test_a_content_exchange_takes_a_filter(shell: Shell, unique: Name) -> None:
    exchange, queue = unique("prices"), unique("cheap")
    shell("exchange", "declare", exchange, "--type", "content")
    shell("queue", "declare", queue)
    shell("binding", "add", exchange, queue, "-a", "x-filter=company = 'Telco' and price < 100")
    shell("publish", "", '{"company": "Telco", "price": 120}', "-e", exchange, code=1)
    shell("publish", "", '{"company": "Telco", "price": 80}', "-e", exchange)
    assert shell("get", queue).stdout == '{"company": "Telco", "price": 80}\n'
    assert "x-filter" in shell("binding", "add", exchange, queue, "-a", "x-filter=price <", code=1).stderr


def test_virtual_hosts_are_apart(amqp: AmqpBroker, shell: Shell, unique: Name) -> None:
    name = unique("apart")
    other = Shell(amqp, OTHER_VHOST)
    other("queue", "declare", name)
    assert other.queue(name)["topic"] == f"{OTHER_VHOST}.{name}"
    assert name not in [entry["name"] for entry in shell.json("queue", "list")]


def test_definitions_go_from_one_broker_to_another(shell: Shell, unique: Name, tmp_path: Path) -> None:
    exchange, queue = unique("x"), unique("q")
    shell("exchange", "declare", exchange, "--type", "headers", "-a", "alternate-exchange=amq.fanout")
    shell("queue", "declare", queue, "-a", "x-message-ttl=60000")
    shell("binding", "add", exchange, queue, "-a", "x-match=any", "-a", "n=1")
    exported = tmp_path / "exported.json"
    shell("definitions", "export", str(exported))
    document = json.loads(exported.read_text())
    second = Trunkline(tmp_path / "second")
    second._definitions.write_text("{}")  # it imports none of the tests' own
    second.start()
    try:
        there = Shell(second)
        done = there.json("definitions", "import", str(exported))
        assert done["imported"]["queues"] == len(document["queues"])
        again = tmp_path / "again.json"
        there("definitions", "export", str(again))
        found = json.loads(again.read_text())
        for part in ("users", "vhosts", "permissions", "exchanges", "queues", "bindings"):
            assert sorted(map(str, found[part])) == sorted(map(str, document[part])), part
    finally:
        second.close()


def test_an_export_of_rabbitmq_is_imported_with_its_users(
    amqp: AmqpBroker, shell: Shell, unique: Name, tmp_path: Path
) -> None:
    user, queue = unique("user"), unique("q")
    document = {
        "rabbit_version": "3.8.9",
        "users": [{"name": user, "password_hash": password_hash("secret"), "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management,policymaker"}],
        "vhosts": [{"name": "/", "limits": [], "metadata": {"description": "Default"}}],
        "permissions": [{"user": user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [{"vhost": "/", "name": "p", "pattern": ".*", "apply-to": "queues", "definition": {"max-length": 5}, "priority": 0}],
        "queues": [{"name": queue, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "classic"}}],
        "exchanges": [],
        "bindings": [{"source": "amq.topic", "vhost": "/", "destination": queue, "destination_type": "queue", "routing_key": "a.*", "arguments": {}}],
    }  # fmt: skip
    path = tmp_path / "rabbit.json"
    path.write_text(json.dumps(document))
    result = shell("definitions", "import", str(path))
    assert "policies" in result.stderr
    with pika.BlockingConnection(pika.URLParameters(url(amqp, user, "secret"))) as connection:
        channel = connection.channel()
        channel.basic_publish("amq.topic", "a.b", b"routed")
        assert channel.basic_get(queue, auto_ack=True)[2] == b"routed"


def test_a_broken_file_and_an_absent_broker_are_explained(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    assert "is not JSON" in shell("definitions", "import", str(path), code=1).stderr
    path.write_text('{"queues": [{"name": 5}]}')
    assert "name must be a string" in shell("definitions", "import", str(path), code=1).stderr
    result = CliRunner().invoke(cli, ["queue", "list", "--url", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "cannot connect" in result.stderr
    assert CliRunner().invoke(cli, ["queue", "list", "--url", "http://x"]).exit_code == 2
