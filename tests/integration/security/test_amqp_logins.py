"""AMQP clients log in: PLAIN, AMQPLAIN, EXTERNAL and tokens, over TLS and without."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import aio_pika
import pika
import pika.credentials
import pika.exceptions
import pytest

from tests.integration.amqp.test_node import modules
from tests.integration.security.secured import CERTIFIED, PASSWORDS, Secured

__all__ = ["modules"]  # a fixture

USER = "alice"
NODE = Path(__file__).parent / "node"


def context(secured: Secured, *, certificate: bool = False) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=secured.ca)
    if certificate:
        made.load_cert_chain(*secured.shown())
    return made


def parameters(
    secured: Secured, credentials: object, *, tls: bool = True, certificate: bool = False
) -> pika.ConnectionParameters:
    options = pika.SSLOptions(context(secured, certificate=certificate), "localhost") if tls else None
    port = secured.port("amqps" if tls else "amqp")
    return pika.ConnectionParameters("127.0.0.1", port, credentials=credentials, ssl_options=options)


def goes_round(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"body")
    assert channel.basic_get(queue)[2] == b"body"
    connection.close()


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_pika_logs_in_with_a_password(secured: Secured, tls: bool) -> None:
    credentials = pika.PlainCredentials(USER, PASSWORDS[USER])
    goes_round(pika.BlockingConnection(parameters(secured, credentials, tls=tls)))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="Login was refused"):
        pika.BlockingConnection(parameters(secured, pika.PlainCredentials(USER, "wrong"), tls=tls))


def test_pika_logs_in_with_a_certificate(secured: Secured) -> None:
    external = pika.credentials.ExternalCredentials()
    connection = pika.BlockingConnection(parameters(secured, external, certificate=True))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    # The broker checks that a message's user id is that of who publishes it.
    channel.basic_publish("", queue, b"mine", pika.BasicProperties(user_id=f"CN={CERTIFIED}"))
    assert channel.basic_get(queue)[2] == b"mine"
    connection.close()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(parameters(secured, external))


def test_a_token_is_a_password_and_a_new_one_is_taken(secured: Secured) -> None:
    credentials = pika.PlainCredentials("", secured.issuer.token(USER))
    connection = pika.BlockingConnection(parameters(secured, credentials))
    connection.update_secret(secured.issuer.token(USER), "it expires")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.update_secret(secured.issuer.token("admin"), "another user")
    for token in (secured.issuer.token(USER, lasts_s=-60), secured.issuer.token(USER, audience="other")):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(parameters(secured, pika.PlainCredentials("", token)))


def test_aio_pika_logs_in(secured: Secured) -> None:
    async def work() -> None:
        connection = await aio_pika.connect(
            host="localhost", port=secured.port("amqps"), login=USER, password=PASSWORDS[USER], ssl=True,
            ssl_context=context(secured),
        )  # fmt: skip
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"body"), queue.name)
        message = await queue.get(timeout=20)
        assert message is not None
        assert message.body == b"body"
        await connection.close()

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="Node and npm are not installed"
)
@pytest.mark.parametrize("how", ["password", "certificate"])
def test_amqplib_logs_in(secured: Secured, modules: Path, how: str, unique: Callable[[str], str]) -> None:
    certificate, key = secured.shown()
    login = f"{USER}:{PASSWORDS[USER]}" if how == "password" else "x:y"
    url = f"amqps://{login}@localhost:{secured.port('amqps')}"
    done = subprocess.run(
        ["node", str(NODE / "amqplib.js"), str(modules), url, secured.ca, how, certificate, key],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "body"
