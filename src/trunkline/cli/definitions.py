"""`trunkline definitions`: everything declared, as one JSON file in RabbitMQ's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click

from trunkline.cli.amqp_options import amqp_options
from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option
from trunkline.cli.output import Json, print_json, remark
from trunkline.client.amqp import AmqpClient

MAX_FILE_BYTES = 64 * 1024 * 1024


@click.group
def definitions() -> None:
    """Export and import users, virtual hosts, permissions, exchanges, queues and bindings."""


@definitions.command("export")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@amqp_options
def export_definitions(client: AmqpClient, file: Path | None) -> None:
    """Write all definitions as JSON, to FILE or, without it or for `-`, to stdout. Passwords are in it as hashes.

    \b
    trunkline definitions export broker.json
    """
    document = client.manage("export")
    if file is None or str(file) == "-":
        print_json(cast(Json, document))
        return
    file.write_text(json.dumps(document, indent=2) + "\n")
    remark(f"wrote {file}")


@definitions.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@json_option
@amqp_options
def import_definitions(client: AmqpClient, file: Path, as_json: bool) -> None:
    """Declare all that a file describes; one that RabbitMQ exported will do. What is there already must agree.

    \b
    trunkline definitions import broker.json
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        raise CommandError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}") from None
    done = cast("dict[str, dict[str, int]]", client.manage("import", definitions=document))
    if as_json:
        print_json(cast(Json, done))
        return
    remark("imported " + ", ".join(f"{count} {part}" for part, count in done["imported"].items()))
    if done["left_out"]:
        remark("left out, as they are not supported: " + ", ".join(done["left_out"]))
