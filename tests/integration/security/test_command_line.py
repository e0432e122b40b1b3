"""The command line: certificates, the first user, and every kind of command as somebody."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.security.secured import PASSWORDS, Secured
from tests.integration.server import NO_LISTENERS, ServerProcess
from tests.integration.waiting import wait_until
from trunkline.security.self_signed import make

SECONDS = 60.0
Unique = Callable[[str], str]


def trunkline(*arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trunkline", *arguments],
        input=given, capture_output=True, text=True, timeout=SECONDS, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def done(*arguments: str, given: str = "", **environment: str) -> str:
    found = trunkline(*arguments, given=given, **environment)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture
def as_admin(secured: Secured, tmp_path: Path) -> list[str]:
    password = tmp_path / "password"
    password.write_text(PASSWORDS["admin"] + "\n")
    return ["--user", "admin", "--password-file", str(password), "--ca", secured.ca]


def test_kafka_commands_log_in_over_tls_and_in_clear(secured: Secured, as_admin: list[str], unique: Unique) -> None:
    topic = unique("topic")
    done("produce", topic, "-b", secured.at("kafka-tls"), *as_admin, given="hello\n")
    # In clear SCRAM is used, which does not show the password.
    read = ("consume", topic, "--from-beginning", "-n", "1", "-b", secured.at("kafka"), "--user", "admin")
    assert "hello" in done(*read, TRUNKLINE_PASSWORD=PASSWORDS["admin"])
    certificate, key = secured.shown()
    shown = ("--ca", secured.ca, "--cert", certificate, "--cert-key", key)
    assert topic in done("topic", "list", "-b", secured.at("kafka-tls"), *shown)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--password-file", "/dev/null"], "Invalid username or password"),
        (["--ca", "system"], "is not believed"),
        (["--ca", "/nowhere/ca.pem"], "there is no such file"),
    ],
)
def test_what_is_wrong_with_a_login_is_said(
    secured: Secured, as_admin: list[str], change: list[str], said: str
) -> None:
    found = trunkline("topic", "list", "-b", secured.at("kafka-tls"), *as_admin, *change)
    assert found.returncode == 1
    assert said in found.stderr
    assert "Traceback" not in found.stderr


def test_users_are_made_changed_and_deleted_on_a_running_broker(
    secured: Secured, as_admin: list[str], unique: Unique
) -> None:
    name = unique("user")
    where = ["--url", f"amqps://{secured.at('amqps')}"]
    done("user", "add", name, "--tag", "management", *where, *as_admin, given="first\n")
    listed = json.loads(done("user", "list", "--json", *where, *as_admin))
    assert {"name": name, "tags": ["management"]} in listed
    again = trunkline("user", "add", name, *where, *as_admin, given="other\n")
    assert again.returncode == 1
    assert "already" in again.stderr
    login = [*where, "--ca", secured.ca, "--user", name]
    done("queue", "list", *login, TRUNKLINE_PASSWORD="first")
    done("user", "password", name, *where, *as_admin, TRUNKLINE_NEW_PASSWORD="second")
    assert trunkline("queue", "list", *login, TRUNKLINE_PASSWORD="first").returncode == 1
    done("queue", "list", *login, TRUNKLINE_PASSWORD="second")
    refused = trunkline("user", "delete", name, *login, TRUNKLINE_PASSWORD="second")
    assert refused.returncode == 1, "only administrators may"
    done("user", "delete", name, *where, *as_admin)
    assert trunkline("queue", "list", *login, TRUNKLINE_PASSWORD="second").returncode == 1


def test_mqtt_commands_log_in_over_tls(secured: Secured, as_admin: list[str]) -> None:
    where = ["--url", f"mqtts://{secured.at('mqtts')}"]
    done("session", "list", *where, *as_admin)
    refused = trunkline("session", "list", *where, "--ca", secured.ca)
    assert refused.returncode == 1
    assert "not authorized" in refused.stderr


def test_a_broker_that_others_can_reach_does_not_start_before_somebody_can_log_in(tmp_path: Path) -> None:
    data, ready = tmp_path / "data", tmp_path / "ready.json"
    environment = {**NO_LISTENERS, "TRUNKLINE_KAFKA_PORT": "0", "TRUNKLINE_LOG_LEVEL": "error"}
    serve = ["serve", "--host", "0.0.0.0", "--data", str(data), "--ready-file", str(ready), "--quiet"]
    for arguments in ([], ["--authentication", "optional"]):
        refused = trunkline(*serve, *arguments, **environment)
        assert refused.returncode == 1
        assert "user add" in refused.stderr
        assert "--insecure" in refused.stderr
    done("user", "add", "admin", "--tag", "administrator", "--data", str(data), given="sesame\n")
    assert "admin" in done("user", "list", "--data", str(data))
    with subprocess.Popen(
        [sys.executable, "-m", "trunkline", *serve], env={**os.environ, **environment}, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_until(ready.exists, SECONDS, "the ready file")
            bootstrap = json.loads(ready.read_text())["kafka"]
            done("topic", "list", "-b", bootstrap, "--user", "admin", TRUNKLINE_PASSWORD="sesame")
            assert trunkline("topic", "list", "-b", bootstrap, "--request-timeout", "2").returncode == 1
            busy = trunkline("user", "list", "--data", str(data))
            assert "in use" in busy.stderr
        finally:
            process.terminate()


def test_self_signed_certificates_are_made_once_and_their_keys_are_secret(tmp_path: Path) -> None:
    directory = tmp_path / "certificates"
    done("tls", "self-signed", str(directory), "--name", "broker.example", "--client", "alice", "--client", "bob")
    assert {path.name for path in directory.iterdir()} == {
        f"{stem}.{kind}" for stem in ("ca", "server", "alice", "bob") for kind in ("pem", "key")
    }
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in directory.glob("*.key"))
    again = trunkline("tls", "self-signed", str(directory))
    assert again.returncode == 1
    assert "is there already" in again.stderr


def test_certificates_are_replaced_without_a_restart(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make(first)
    make(second)
    server = ServerProcess(
        tmp_path,
        {"tls_certificate": str(first / "server.pem"), "tls_key": str(first / "server.key"), "kafka_tls_port": "0"},
    )
    server.start()
    try:
        assert believed(server, first)
        (first / "server.pem").write_text("nonsense")
        os.kill(server.pid, 1)  # SIGHUP
        wait_until(lambda: "the certificates stay as they were" in server.log_tail(), 10, "the complaint")
        assert believed(server, first), "what is no good is not taken"
        for name in ("server.key", "server.pem"):
            (first / name).write_bytes((second / name).read_bytes())
        os.kill(server.pid, 1)
        wait_until(lambda: believed(server, second), 10, "the new certificate")
        assert not believed(server, first)
    finally:
        server.close()


def believed(server: ServerProcess, certificates: Path) -> bool:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    try:
        with socket.create_connection(("127.0.0.1", server.port_of("kafka-tls")), 10) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
    except ssl.SSLCertVerificationError:
        return False
    return True
