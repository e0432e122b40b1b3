"""`trunkline exchange`: list, declare, delete."""

from __future__ import annotations

from typing import cast

import click

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.cli.amqp_options import amqp_options, arguments_option, listed
from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option
from trunkline.cli.output import Json, print_json, print_table, remark
from trunkline.client.amqp import AmqpClient
from trunkline.protocols.amqp import methods as m

KINDS = ("direct", "fanout", "topic", "headers", "content", "type", "x-delayed-message")


@click.group
def exchange() -> None:
    """List, declare and delete exchanges."""


@exchange.command("list")
@json_option
@amqp_options
def list_exchanges(client: AmqpClient, as_json: bool) -> None:
    """List exchanges.

    \b
    trunkline exchange list
    """
    exchanges = sorted(listed(client.manage("exchanges")), key=lambda entry: str(entry["name"]))
    if as_json:
        print_json(cast(Json, exchanges))
        return
    rows = [(str(entry["name"]) or "(default)", str(entry["type"]), _traits(entry)) for entry in exchanges]
    print_table(("exchange", "type", "kind"), rows)


def _traits(entry: dict[str, object]) -> str:
    words = ["durable" if entry["durable"] else "transient"]
    words += [word for word in ("internal", "auto_delete") if entry[word]]
    arguments = entry["arguments"]
    if isinstance(arguments, dict):
        words += [f"{name}={value}" for name, value in arguments.items()]
    return ", ".join(words).replace("_", "-")


@exchange.command
@click.argument("name")
@click.option("-t", "--type", "kind", type=click.Choice(KINDS), default="direct", help="How it routes.")
@click.option("--transient", is_flag=True, help="Gone when the broker stops.")
@click.option("--auto-delete", is_flag=True, help="Gone when its last binding is.")
@click.option("--internal", is_flag=True, help="Only other exchanges can publish to it.")
@arguments_option
@json_option
@amqp_options
def declare(
    client: AmqpClient,
    *,
    name: str,
    kind: str,
    transient: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, FieldValue],
    as_json: bool,
) -> None:
    """Declare an exchange; succeeds if it is there just so.

    \b
    trunkline exchange declare orders --type topic
    trunkline exchange declare orders --type topic -a alternate-exchange=unrouted
    """
    method = m.ExchangeDeclare(0, name, kind, False, not transient, auto_delete, internal, False, arguments)
    client.call(method, m.ExchangeDeclareOk)
    if as_json:
        print_json({"exchange": name, "type": kind})
    else:
        remark(f"declared exchange {name} of type {kind}")


@exchange.command
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--if-unused", is_flag=True, help="Only without bindings.")
@json_option
@amqp_options
def delete(client: AmqpClient, *, names: tuple[str, ...], if_unused: bool, as_json: bool) -> None:
    """Delete exchanges and their bindings.

    \b
    trunkline exchange delete orders --if-unused
    """
    known = {str(entry["name"]) for entry in listed(client.manage("exchanges"))}
    missing = [name for name in names if name not in known]
    if missing:
        raise CommandError(f"there is no exchange {missing[0]}", "`trunkline exchange list` shows what there is")
    for name in names:
        client.call(m.ExchangeDelete(0, name, if_unused, False), m.ExchangeDeleteOk)
    if as_json:
        print_json({"deleted": list(names)})
    else:
        remark(f"deleted {', '.join(names)}")
