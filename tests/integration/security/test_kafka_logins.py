"""Kafka clients log in: every mechanism that each of them has, over TLS and without."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import kafka.net.sasl.oauth
import pytest

from tests.integration.kafka.clients import KCAT_SECONDS
from tests.integration.security.secured import CERTIFIED, PASSWORDS, Secured, secured_broker
from tests.integration.waiting import wait_until

Unique = Callable[[str], str]
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")
USER = "alice"


# -- confluent-kafka, on librdkafka ------------------------------------------------------------------------------------


def librdkafka(
    secured: Secured, mechanism: str, password: str = PASSWORDS[USER], *, tls: bool = True
) -> dict[str, Any]:
    where = {"bootstrap.servers": secured.at("kafka-tls" if tls else "kafka"), "ssl.ca.location": secured.ca}
    if mechanism == "certificate":
        certificate, key = secured.shown()
        return {**where, "security.protocol": "SSL", "ssl.certificate.location": certificate, "ssl.key.location": key}
    login: dict[str, Any] = {"sasl.username": USER, "sasl.password": password}
    if mechanism == "OAUTHBEARER":
        token = secured.issuer.token(USER) if password == PASSWORDS[USER] else "not.a.token"
        login = {"oauth_cb": lambda _: (token, time.time() + 600)}
    return {**where, "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT", "sasl.mechanism": mechanism, **login}


@pytest.mark.parametrize(("mechanism", "tls"), [*((each, True) for each in (*MECHANISMS, "certificate")), ("PLAIN", False), ("SCRAM-SHA-256", False)])  # fmt: skip
def test_confluent_kafka_logs_in_and_writes_and_reads(
    secured: Secured, unique: Unique, mechanism: str, tls: bool
) -> None:
    topic = unique("topic")
    settings = librdkafka(secured, mechanism, tls=tls)
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    reader = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = reader.poll(20)
    assert message is not None
    assert message.value() == b"value"
    told = reader.list_topics(topic, timeout=10).brokers
    assert [each.port for each in told.values()] == [secured.port("kafka-tls" if tls else "kafka")]
    reader.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_is_told_that_the_password_is_wrong(secured: Secured, mechanism: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    client = confluent_kafka.Producer({**librdkafka(secured, mechanism, "wrong"), "error_cb": errors.append})
    deadline = time.monotonic() + 20
    while not errors and time.monotonic() < deadline:
        client.poll(0.1)
    assert errors
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION


def test_nothing_is_answered_without_a_login(secured: Secured) -> None:
    for settings in (
        {"bootstrap.servers": secured.at("kafka")},
        {"bootstrap.servers": secured.at("kafka-tls"), "security.protocol": "SSL", "ssl.ca.location": secured.ca},
    ):
        admin = confluent_kafka.admin.AdminClient(settings)
        with pytest.raises(confluent_kafka.KafkaException):
            admin.list_topics(timeout=2)


def test_scram_users_are_made_changed_listed_and_removed(secured: Secured, unique: Unique) -> None:
    user = unique("user")
    admin = confluent_kafka.admin.AdminClient(
        {**librdkafka(secured, "PLAIN", PASSWORDS["admin"]), "sasl.username": "admin"}
    )
    credential = confluent_kafka.admin.ScramCredentialInfo(confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512, 8192)
    upsertion = confluent_kafka.admin.UserScramCredentialUpsertion(user, credential, b"from kafka")
    admin.alter_user_scram_credentials([upsertion])[user].result(20)
    described = admin.describe_user_scram_credentials([user])[user].result(20)
    assert [(each.mechanism.name, each.iterations) for each in described.scram_credential_infos] == [
        ("SCRAM_SHA_512", 8192)
    ]
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        login = {**librdkafka(secured, mechanism, "from kafka"), "sasl.username": user}
        assert confluent_kafka.admin.AdminClient(login).list_topics(timeout=20).brokers
    deletion = confluent_kafka.admin.UserScramCredentialDeletion(
        user, confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512
    )
    admin.alter_user_scram_credentials([deletion])[user].result(20)
    with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials([user])[user].result(20)


# -- kafka-python ------------------------------------------------------------------------------------------------------


class _Token(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str, **_: object) -> None:
        self._token = token

    def token(self) -> str:
        return self._token

    def extensions(self) -> Mapping[str, str]:
        return {}


def kafka_python(secured: Secured, mechanism: str) -> dict[str, Any]:
    where = {"bootstrap_servers": secured.at("kafka-tls"), "ssl_cafile": secured.ca}
    if mechanism == "certificate":
        certificate, key = secured.shown()
        return {**where, "security_protocol": "SSL", "ssl_certfile": certificate, "ssl_keyfile": key}
    login: dict[str, Any] = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORDS[USER]}
    if mechanism == "OAUTHBEARER":
        login = {"sasl_oauth_token_provider": _Token(secured.issuer.token(USER))}
    return {**where, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, **login}


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "certificate"])
def test_kafka_python_logs_in_and_writes(secured: Secured, unique: Unique, mechanism: str) -> None:
    producer = kafka.KafkaProducer(**kafka_python(secured, mechanism))
    assert producer.send(unique("topic"), b"value").get(20).offset == 0
    producer.close()


# -- aiokafka ----------------------------------------------------------------------------------------------------------


class _AsyncToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "certificate"])
def test_aiokafka_logs_in_and_writes(secured: Secured, unique: Unique, mechanism: str) -> None:
    async def work() -> None:
        context = ssl.create_default_context(cafile=secured.ca)
        settings: dict[str, Any] = {"security_protocol": "SSL"}
        if mechanism == "certificate":
            context.load_cert_chain(*secured.shown())
        else:
            settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, "sasl_plain_username": USER}
            settings["sasl_plain_password"] = PASSWORDS[USER]
            settings["sasl_oauth_token_provider"] = _AsyncToken(secured.issuer.token(USER))
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=secured.at("kafka-tls"), ssl_context=context, **settings)
        await producer.start()
        try:
            assert (await producer.send_and_wait(unique("topic"), b"value")).offset == 0
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(work(), 60))


# -- kcat --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM, "certificate"])
def test_kcat_logs_in_and_lists(secured: Secured, mechanism: str) -> None:
    options = [f"{name}={value}" for name, value in librdkafka(secured, mechanism).items()]
    command = ["kcat", "-L", *(word for option in options for word in ("-X", option))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=KCAT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert f"broker 1 at {secured.at('kafka-tls')}" in done.stdout


def test_who_logged_in_is_in_the_audit_trail_and_no_password_is(secured: Secured) -> None:
    confluent_kafka.admin.AdminClient(librdkafka(secured, "certificate")).list_topics(timeout=20)
    confluent_kafka.admin.AdminClient(librdkafka(secured, "PLAIN")).list_topics(timeout=20)
    wanted = [f'"login","user":"{name}"'.encode() for name in (f"CN={CERTIFIED}", USER)]
    wait_until(lambda: all(each in _audit(secured) for each in wanted), 10, f"{wanted} in the audit trail")
    kept = _audit(secured) + secured.server.log.read_bytes()
    assert not any(password.encode() in kept for password in PASSWORDS.values())


def _audit(secured: Secured) -> bytes:
    return b"".join(path.read_bytes() for path in secured.server.data.glob("**/__audit-0/*.log"))


def test_users_survive_a_kill(tmp_path: Path) -> None:
    broker = secured_broker(tmp_path)
    broker.server.start()
    try:
        admin = confluent_kafka.admin.AdminClient(
            {**librdkafka(broker, "PLAIN", PASSWORDS["admin"]), "sasl.username": "admin"}
        )
        credential = confluent_kafka.admin.ScramCredentialInfo(confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256, 4096)
        upsertion = confluent_kafka.admin.UserScramCredentialUpsertion("kept", credential, b"secret")
        admin.alter_user_scram_credentials([upsertion])["kept"].result(20)
        broker.server.kill()
        broker.server.start()
        login = {**librdkafka(broker, "SCRAM-SHA-256", "secret"), "sasl.username": "kept"}
        assert confluent_kafka.admin.AdminClient(login).list_topics(timeout=20).brokers
    finally:
        broker.server.close()
