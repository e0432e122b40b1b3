"""`trunkline group`: consumer and share groups, how far they are, and moving them."""

from __future__ import annotations

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.options import client_options, json_option, parse_since
from trunkline.cli.output import print_json, print_table, remark
from trunkline.client import Client, ClientError
from trunkline.client.groups import Group, Groups, Progress
from trunkline.client.share_groups import SHARE, ShareGroups
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition


@click.group
def group() -> None:
    """List, describe, reset and delete consumer and share groups."""


@group.command("list")
@json_option
@client_options
def list_groups(client: Client, as_json: bool) -> None:
    """List groups.

    \b
    trunkline group list
    """
    groups = Groups(client).all()
    if as_json:
        print_json([{"group": item.name, "state": item.state, "type": item.kind} for item in groups])
        return
    rows = [(item.name, item.state, item.kind) for item in groups]
    print_table(
        ("group", "state", "type"), rows, empty="there are no groups yet; `trunkline consume --group` makes one"
    )


@group.command
@click.argument("name")
@json_option
@client_options
def describe(client: Client, name: str, as_json: bool) -> None:
    """Show a group's members and, per partition, its committed offset and lag.

    Of a share group the offset is the first that is not done with; its lag counts the records that are not.

    \b
    trunkline group describe billing
    trunkline group describe billing --json
    """
    found = Groups(client).describe(name)
    progress = Groups(client).progress(found)
    total = sum(item.lag for item in progress)
    if as_json:
        print_json(
            {
                "group": name,
                "state": found.state,
                "type": found.kind,
                "assignor": found.assignor,
                "lag": total,
                "members": [
                    {
                        "member": member.id,
                        "client": member.client_id,
                        "host": member.host,
                        "instance": member.instance_id,
                        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in member.assigned],
                    }
                    for member in found.members
                ],
                "partitions": [
                    {
                        "topic": item.partition.topic,
                        "partition": item.partition.partition,
                        "committed": item.committed,
                        "end": item.end,
                        "lag": item.lag,
                        "member": item.member.id if item.member else None,
                    }
                    for item in progress
                ],
            }
        )
        return
    click.echo(
        f"{name}  {found.state}, {found.kind}{' ' + found.assignor if found.assignor else ''}, "
        f"{len(found.members)} member{'' if len(found.members) == 1 else 's'}, lag {total}"
    )
    rows = [_progress_row(item) for item in progress]
    print_table(
        ("topic", "partition", "committed", "end", "lag", "member", "client", "host"),
        rows,
        empty="it has committed no offsets and owns no partitions",
    )


def _progress_row(item: Progress) -> tuple[str, int, int | None, int, int, str | None, str | None, str | None]:
    member = item.member
    owner = (member.id, member.client_id, member.host) if member else (None, None, None)
    return (item.partition.topic, item.partition.partition, item.committed, item.end, item.lag, *owner)


@group.command
@click.argument("name")
@click.option("--to", "target", metavar="earliest|latest|OFFSET", help="Move to an end or to an offset.")
@click.option("--since", metavar="SPAN|TIME", help="Move to a time: 10m, 2h, 1d ago, or 2026-01-31T12:00.")
@click.option("--shift", type=int, metavar="N", help="Move by N records; negative goes back.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITION]",
    help="Only this topic or partition; may be repeated.  [default: all that the group has committed]",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would change.")
@json_option
@client_options
def reset(
    client: Client,
    *,
    name: str,
    target: str | None,
    since: str | None,
    shift: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move a group's committed offsets. The group must have no members.

    Offsets outside of a partition are moved to its nearest end.

    \b
    trunkline group reset billing --to earliest --dry-run
    trunkline group reset billing --since 2h --topic orders
    trunkline group reset billing --shift -100 --topic orders:0
    """
    if sum(item is not None for item in (target, since, shift)) != 1:
        raise click.UsageError("give one of --to, --since and --shift")
    groups = Groups(client)
    shared, committed = _committed(groups, name, new_allowed=bool(topics))
    partitions = _chosen(client, topics) if topics else sorted(committed)
    if not partitions:
        raise CommandError(f"group {name} has committed no offsets", "name what to set with --topic")
    after = _targets(client, partitions, committed, target=target, since=since, shift=shift)
    if not dry_run:
        (ShareGroups(client).move if shared else groups.commit)(name, after)
    if as_json:
        print_json(
            {
                "group": name,
                "dry_run": dry_run,
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "before": committed.get(tp), "after": after[tp]}
                    for tp in partitions
                ],
            }
        )
        return
    rows = [(tp.topic, tp.partition, committed.get(tp), after[tp]) for tp in partitions]
    print_table(("topic", "partition", "before", "after"), rows)
    remark("nothing was changed (--dry-run)" if dry_run else f"moved group {name}")


def _committed(groups: Groups, name: str, *, new_allowed: bool) -> tuple[bool, dict[TopicPartition, int]]:
    """Whether it is a share group, and where it stands."""
    try:
        found: Group = groups.describe(name)
    except ClientError as error:
        if error.name == "GROUP_ID_NOT_FOUND" and new_allowed:
            return False, {}
        raise
    if found.members:
        raise CommandError(
            f"group {name} has {len(found.members)} member{'' if len(found.members) == 1 else 's'}",
            "stop its consumers first; `trunkline group describe` shows them",
        )
    if found.kind == SHARE:
        standings = ShareGroups(groups.client).standings(name)
        return True, {tp: standing.start_offset for tp, standing in standings.items()}
    return False, groups.committed(name)


def _chosen(client: Client, topics: tuple[str, ...]) -> list[TopicPartition]:
    found: set[TopicPartition] = set()
    for item in topics:
        # A topic name has no colon, so what follows one is a partition.
        name, colon, index = item.partition(":")
        existing = [partition.index for partition in client.topic(name).partitions]
        if colon and (not index.isdecimal() or int(index) not in existing):
            raise CommandError(f"topic {name} has no partition {index}", f"it has 0 to {existing[-1]}")
        found |= {TopicPartition(name, each) for each in ([int(index)] if colon else existing)}
    return sorted(found)


def _targets(
    client: Client,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
    *,
    target: str | None,
    since: str | None,
    shift: int | None,
) -> dict[TopicPartition, int]:
    topics = Topics(client)
    starts, ends = topics.offsets(partitions, EARLIEST), topics.offsets(partitions, LATEST)
    wanted: dict[TopicPartition, int]
    if since is not None:
        wanted = topics.offsets_since(partitions, parse_since(since, client.clock.wall_ms()))
    elif shift is not None:
        wanted = {tp: committed.get(tp, starts[tp]) + shift for tp in partitions}
    elif target in {"earliest", "latest"}:
        wanted = starts if target == "earliest" else ends
    else:
        try:
            wanted = dict.fromkeys(partitions, int(target or ""))
        except ValueError:
            raise click.BadParameter(
                f"{target!r} is neither earliest, latest nor an offset", param_hint="--to"
            ) from None
    return {tp: min(max(wanted[tp], starts[tp]), ends[tp]) for tp in partitions}


@group.command
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@client_options
def delete(client: Client, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete groups and their committed offsets.

    \b
    trunkline group delete billing --yes
    """
    if not yes:
        click.confirm(f"Delete {', '.join(names)} and their committed offsets?", abort=True, err=True)
    for name in names:
        Groups(client).delete(name)
    if as_json:
        print_json({"deleted": list(names)})
    else:
        remark(f"deleted {', '.join(names)}")
