"""`trunkline topic`: create, list, describe, alter, delete, archive."""

from __future__ import annotations

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.options import client_options, json_option, parse_pairs
from trunkline.cli.output import print_json, print_table, remark
from trunkline.client import Client, ClientError
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition


class _TopicGroup(click.Group):
    """Imports `archive`, which is a room of its own, only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "archive"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "archive":
            from trunkline.cli.archive import archive

            return archive
        return super().get_command(ctx, cmd_name)


@click.group(cls=_TopicGroup)
def topic() -> None:
    """Create, list, describe, alter, delete and archive topics."""


@topic.command
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions.  [default: the broker's]")
@click.option("--replicas", type=click.IntRange(min=1), help="Copies of each partition.  [default: the broker's]")
@click.option(
    "-c",
    "--config",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_pairs,
    help="A topic setting; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed when the topic is there already.")
@json_option
@client_options
def create(
    client: Client,
    *,
    name: str,
    partitions: int | None,
    replicas: int | None,
    config: list[tuple[str, str]],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create a topic.

    \b
    trunkline topic create orders --partitions 8
    trunkline topic create prices -c cleanup.policy=compact -c retention.ms=-1
    """
    created = True
    try:
        Topics(client).create(name, partitions or -1, dict(config), replicas or -1)
    except ClientError as error:
        if not (if_not_exists and error.name == "TOPIC_ALREADY_EXISTS"):
            raise
        created = False
    if as_json:
        print_json({"topic": name, "created": created})
    else:
        remark(f"created topic {name}" if created else f"topic {name} exists already")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also topics whose names begin with two underscores.")
@json_option
@client_options
def list_topics(client: Client, internal: bool, as_json: bool) -> None:
    """List topics.

    \b
    trunkline topic list
    trunkline topic list --internal --json
    """
    found = sorted(client.metadata().topics.items())
    topics = [item for name, item in found if internal or not name.startswith("__")]
    if as_json:
        print_json(
            [
                {"topic": item.name, "id": str(item.id), "partitions": len(item.partitions), "internal": item.internal}
                for item in topics
            ]
        )
        return
    rows = [(item.name, len(item.partitions), str(item.id)) for item in topics]
    print_table(
        ("topic", "partitions", "id"), rows, empty="there are no topics yet; `trunkline topic create NAME` makes one"
    )


@topic.command
@click.argument("name")
@click.option("--all", "all_settings", is_flag=True, help="Every setting, not only those set on this topic.")
@json_option
@client_options
def describe(client: Client, name: str, all_settings: bool, as_json: bool) -> None:
    """Show a topic's partitions, their offsets, and its settings.

    \b
    trunkline topic describe orders
    trunkline topic describe orders --all --json
    """
    found = client.topic(name)
    partitions = [TopicPartition(name, item.index) for item in found.partitions]
    starts = Topics(client).offsets(partitions, EARLIEST)
    ends = Topics(client).offsets(partitions, LATEST)
    settings = [item for item in Topics(client).settings(name) if all_settings or item.overridden]
    if as_json:
        print_json(
            {
                "topic": name,
                "id": str(found.id),
                "internal": found.internal,
                "partitions": [
                    {
                        "partition": item.index,
                        "leader": item.leader,
                        "replicas": list(item.replicas),
                        "in_sync": list(item.in_sync),
                        "start": starts[tp],
                        "end": ends[tp],
                    }
                    for item, tp in zip(found.partitions, partitions, strict=True)
                ],
                "config": {item.name: item.value for item in settings},
            }
        )
        return
    click.echo(f"{name}  {found.id}")
    rows = [
        (
            item.index,
            item.leader,
            ",".join(map(str, item.replicas)),
            ",".join(map(str, item.in_sync)),
            starts[tp],
            ends[tp],
        )
        for item, tp in zip(found.partitions, partitions, strict=True)
    ]
    print_table(("partition", "leader", "replicas", "in sync", "start", "end"), rows)
    if settings:
        click.echo()
        shown = [(item.name, item.value, "topic" if item.overridden else "default") for item in settings]
        print_table(("setting", "value", "origin"), shown)


@topic.command
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="New number of partitions; it can only grow.")
@click.option(
    "-c",
    "--config",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_pairs,
    help="A setting to change; may be repeated.",
)
@click.option(
    "--delete-config",
    "unset",
    multiple=True,
    metavar="NAME",
    help="A setting to put back to its default; may be repeated.",
)
@json_option
@client_options
def alter(
    client: Client,
    *,
    name: str,
    partitions: int | None,
    config: list[tuple[str, str]],
    unset: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change a topic's settings, or give it more partitions.

    \b
    trunkline topic alter orders --config retention.ms=86400000
    trunkline topic alter orders --delete-config retention.ms --partitions 16
    """
    if partitions is None and not config and not unset:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    client.topic(name)
    if config or unset:
        Topics(client).configure(name, dict(config), unset)
    if partitions is not None:
        Topics(client).grow(name, partitions)
    if as_json:
        print_json({"topic": name, "altered": True})
    else:
        remark(f"altered topic {name}")


@topic.command
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@client_options
def delete(client: Client, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete topics and all their records.

    \b
    trunkline topic delete orders --yes
    """
    missing = [name for name in names if name not in client.metadata(names).topics]
    if missing:
        raise CommandError(f"there is no topic {missing[0]}", "`trunkline topic list` shows what there is")
    if not yes:
        click.confirm(f"Delete {', '.join(names)} and all their records?", abort=True, err=True)
    for name in names:
        Topics(client).delete(name)
    if as_json:
        print_json({"deleted": list(names)})
    else:
        remark(f"deleted {', '.join(names)}")
