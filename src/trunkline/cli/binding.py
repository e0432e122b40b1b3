"""`trunkline binding`: list, add, remove."""

from __future__ import annotations

import json
from typing import cast

import click

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.cli.amqp_options import amqp_options, arguments_option, listed
from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option
from trunkline.cli.output import Json, print_json, print_table, remark
from trunkline.client.amqp import AmqpClient
from trunkline.client.errors import ClientError
from trunkline.protocols.amqp import methods as m


@click.group
def binding() -> None:
    """List, add and remove bindings."""


@binding.command("list")
@click.option("--source", metavar="EXCHANGE", help="Only those from this exchange.")
@click.option("--destination", metavar="NAME", help="Only those to this queue or exchange.")
@json_option
@amqp_options
def list_bindings(client: AmqpClient, *, source: str | None, destination: str | None, as_json: bool) -> None:
    """List bindings.

    \b
    trunkline binding list --source orders
    """
    found = [
        entry
        for entry in listed(client.manage("bindings"))
        if (source is None or entry["source"] == source)
        and (destination is None or entry["destination"] == destination)
    ]
    if as_json:
        print_json(cast(Json, found))
        return
    rows = [
        (
            str(entry["source"]),
            str(entry["routing_key"]),
            str(entry["destination"]),
            str(entry["destination_type"]),
            json.dumps(entry["arguments"]) if entry["arguments"] else "",
        )
        for entry in found
    ]
    print_table(("from", "routing key", "to", "which is", "arguments"), rows, empty="there are no bindings")


@binding.command
@click.argument("source")
@click.argument("destination")
@click.option("-k", "--routing-key", default="", help="Routing key, or pattern of a topic exchange.")
@click.option("--to-exchange", is_flag=True, help="The destination is an exchange, not a queue.")
@arguments_option
@json_option
@amqp_options
def add(
    client: AmqpClient,
    *,
    source: str,
    destination: str,
    routing_key: str,
    to_exchange: bool,
    arguments: dict[str, FieldValue],
    as_json: bool,
) -> None:
    """Let what is published to an exchange go to a queue, or on to another exchange.

    \b
    trunkline binding add orders tasks -k 'order.*.created'
    trunkline binding add prices cheap -a "x-filter=price < 100"
    """
    if to_exchange:
        client.call(m.ExchangeBind(0, destination, source, routing_key, False, arguments), m.ExchangeBindOk)
    else:
        client.call(m.QueueBind(0, destination, source, routing_key, False, arguments), m.QueueBindOk)
    _report("bound", source, destination, routing_key, as_json)


@binding.command
@click.argument("source")
@click.argument("destination")
@click.option("-k", "--routing-key", default="", help="Routing key, as it was bound.")
@click.option("--to-exchange", is_flag=True, help="The destination is an exchange, not a queue.")
@arguments_option
@json_option
@amqp_options
def remove(
    client: AmqpClient,
    *,
    source: str,
    destination: str,
    routing_key: str,
    to_exchange: bool,
    arguments: dict[str, FieldValue],
    as_json: bool,
) -> None:
    """Remove a binding, given with the same routing key and arguments.

    \b
    trunkline binding remove orders tasks -k 'order.*.created'
    """
    before = _all(client)
    if to_exchange:
        client.call(m.ExchangeUnbind(0, destination, source, routing_key, False, arguments), m.ExchangeUnbindOk)
    else:
        client.call(m.QueueUnbind(0, destination, source, routing_key, arguments), m.QueueUnbindOk)
    if before is not None and before == _all(client):
        raise CommandError(
            f"{destination} is not bound to {source} with the routing key '{routing_key}' and these arguments",
            "`trunkline binding list` shows what there is",
        )
    _report("unbound", source, destination, routing_key, as_json)


def _all(client: AmqpClient) -> list[dict[str, object]] | None:
    """All bindings: to unbind what is not bound succeeds in AMQP, and a person who wrote another key wants to know.

    None of a broker that is not ours, and cannot be asked.
    """
    try:
        return listed(client.manage("bindings"))
    except ClientError as error:
        if error.name != "NOT_IMPLEMENTED":
            raise
        return None


def _report(done: str, source: str, destination: str, routing_key: str, as_json: bool) -> None:
    if as_json:
        print_json({done: True, "source": source, "destination": destination, "routing_key": routing_key})
    else:
        remark(f"{done} {destination} {'to' if done == 'bound' else 'from'} {source}")
