"""Kafka's own tools log in: SCRAM users are made with kafka-configs, and used over TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.java.jvm import java
from tests.integration.java.test_console_tools import CONFIGS, CONSUMER, PRODUCER, TOOL_SECONDS, TOPICS
from tests.integration.security.conftest import secured
from tests.integration.security.secured import PASSWORDS, Secured
from trunkline.bench.apache_kafka import classpath

__all__ = ["secured"]  # a fixture

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]
Unique = Callable[[str], str]


def properties(path: Path, broker: Secured, mechanism: str, user: str, password: str) -> Path:
    login = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path.write_text(
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{login} required "
        f'username="{user}" password="{password}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={broker.ca}\n"
    )
    return path


def tool(broker: Secured, main_class: str, *arguments: str, stdin: str = "") -> str:
    where = ("--bootstrap-server", broker.at("kafka-tls"))
    done = java(classpath(), [main_class, *where, *arguments], TOOL_SECONDS, stdin)
    assert done.returncode == 0, f"{main_class} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_tools_make_a_scram_user_and_log_in_as_it(secured: Secured, tmp_path: Path, unique: Unique) -> None:
    user, topic = unique("user"), unique("topic")
    admin = properties(tmp_path / "admin.properties", secured, "PLAIN", "admin", PASSWORDS["admin"])
    entity = ("--command-config", str(admin), "--entity-type", "users", "--entity-name", user)
    keys = "SCRAM-SHA-256=[iterations=8192,password=from java],SCRAM-SHA-512=[password=from java]"
    tool(secured, CONFIGS, *entity, "--alter", "--add-config", keys)
    described = tool(secured, CONFIGS, *entity, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    tool(secured, TOPICS, "--command-config", str(admin), "--create", "--topic", topic)
    as_user = {
        mechanism: str(properties(tmp_path / mechanism, secured, mechanism, user, "from java"))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    }
    tool(secured, PRODUCER, "--command-config", as_user["SCRAM-SHA-256"], "--topic", topic, stdin="one\ntwo\n")
    shown = tool(
        secured, CONSUMER, "--command-config", as_user["SCRAM-SHA-512"], "--topic", topic, "--from-beginning",
        "--max-messages", "2", "--timeout-ms", "30000",
    )  # fmt: skip
    assert shown.split() == ["one", "two"]
    tool(secured, CONFIGS, *entity, "--alter", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")


def test_a_wrong_password_is_understood_by_the_tools(secured: Secured, tmp_path: Path) -> None:
    wrong = properties(tmp_path / "wrong", secured, "SCRAM-SHA-256", "admin", "wrong")
    where = ("--bootstrap-server", secured.at("kafka-tls"), "--command-config", str(wrong))
    done = java(classpath(), [TOPICS, *where, "--list"], TOOL_SECONDS)
    assert done.returncode != 0
    assert "SaslAuthenticationException" in done.stdout + done.stderr
