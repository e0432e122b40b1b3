"""A broker and those who talk to it: bob and alice by AMQP and MQTT, an administrator by Kafka and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.integration.mqtt.wire import Wire
from tests.integration.server import ServerProcess
from trunkline.cli.main import cli
from trunkline.client.amqp import Address, AmqpClient
from trunkline.protocols.mqtt.packets import V5

DEADLINE_S = 30.0
HOST = "127.0.0.1"


class Broker:
    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._admins: dict[str, AdminClient] = {}  # one that is forgotten ends what it was asked for

    # -- administrators -------------------------------------------------------------------------------------------------

    def manage(self, do: str, **arguments: object) -> Any:  # the shape differs from request to request
        with AmqpClient(Address(HOST, self.server.port_of("amqp")), timeout_ms=int(DEADLINE_S * 1000)) as client:
            return client.manage(do, **arguments)

    def add_users(self, *names: str) -> None:
        for name in names:
            self.manage("put_user", name=name, password=name, tags=[])
            self.permit(name)

    def permit(self, user: str, *, configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        self.manage("put_permission", user=user, configure=configure, write=write, read=read)

    def forget_rules(self) -> None:
        every = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for future in self.admin().delete_acls([every]).values():
            future.result(DEADLINE_S)
        for rule in self.manage("rules"):
            self.manage(
                "remove_rules",
                user=rule["user"],
                operations=[rule["operation"]],
                resource=rule["resource"],
                deny=rule["effect"] == "deny",
                host=rule["host"],
            )

    def admin(self, user: str = "") -> AdminClient:
        """By Kafka, as nobody in particular or as a user."""
        found = self._admins.get(user)
        if found is None:
            settings = self.kafka(user) if user else {"bootstrap.servers": self.server.bootstrap}
            found = self._admins[user] = AdminClient({**settings, "log_level": 0})
        return found

    def shell(self, *arguments: str, code: int = 0) -> str:
        url = f"amqp://guest:guest@{HOST}:{self.server.port_of('amqp')}/%2F"
        result = CliRunner().invoke(cli, [*arguments, "--url", url])
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.shell(*arguments, "--json", code=code))

    def kafka(self, user: str, **settings: object) -> dict[str, Any]:
        """The settings of a librdkafka client that logs in."""
        return {
            "bootstrap.servers": self.server.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": user,
            "log_level": 0,
            **settings,
        }

    # -- users ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def channel(self, user: str) -> Iterator[Any]:
        """An AMQP channel; what closes it is the test's matter."""
        where = pika.ConnectionParameters(
            HOST,
            self.server.port_of("amqp"),
            "/",
            pika.PlainCredentials(user, user),
            blocked_connection_timeout=DEADLINE_S,
        )
        connection = pika.BlockingConnection(where)
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    @contextmanager
    def mqtt(self, user: str, client_id: str, version: int = V5) -> Iterator[Wire]:
        with Wire(self.server.port_of("mqtt"), version) as wire:
            assert wire.connect(client_id, user_name=user, password=user.encode()).reason_code == 0
            yield wire
