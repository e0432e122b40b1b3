"""`trunkline audit`: what is in the audit trail."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import cast

import click

from trunkline.cli.amqp_options import amqp_options, listed
from trunkline.cli.options import json_option
from trunkline.cli.output import reader_gone
from trunkline.client.amqp import AmqpClient

KINDS = ("login", "login-refused", "access-refused", "change")
_PAGE = 1_000
_LOOK_S = 0.5


@click.command
@click.option("-n", "--last", type=click.IntRange(1, 1_000), default=100, show_default=True, metavar="N", help="How many of the last events to look at.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only events of this kind; may be repeated.")  # fmt: skip
@click.option("--of", "whom", metavar="USER", help="Only events of this user.")
@json_option
@amqp_options
def audit(
    client: AmqpClient, *, last: int, follow: bool, kinds: tuple[str, ...], whom: str | None, as_json: bool
) -> None:
    """Show logins, refusals and administrative changes, oldest first. With --json, one object a line.

    \b
    trunkline audit
    trunkline audit --kind login-refused --kind access-refused --follow
    trunkline audit -n 1000 --of alice --json
    """
    wanted = {kind.replace("-", " ") for kind in kinds}
    page = cast("dict[str, object]", client.manage("audit", count=last))
    while True:
        for event in listed(page["events"]):
            if (not wanted or event["kind"] in wanted) and whom in (None, event.get("user")):
                click.echo(json.dumps(event, ensure_ascii=False) if as_json else _line(event))
        if not follow or reader_gone():
            return
        if not page["events"]:
            time.sleep(_LOOK_S)
        page = cast("dict[str, object]", client.manage("audit", count=_PAGE, offset=page["following"]))


def _line(event: dict[str, object]) -> str:
    at = datetime.fromtimestamp(int(str(event["time_ms"])) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    who = f"{event['user']}@{event['host']}" if event.get("host") else str(event["user"])
    words = [at, f"{event['kind']!s:<14}", who]
    words += [str(event[name]) for name in ("protocol", "target", "text") if event.get(name)]
    if "count" in event:
        words.append(f"({event['count']} times)")
    return "  ".join(words)
