"""`trunkline bench match`: content matching among many filters, each measurement in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import click
from rich.console import Console
from rich.table import Table

from trunkline import CODECS_COMPILED
from trunkline.bench.matching import KINDS, SIZES, Matching
from trunkline.bench.progress import progress_bar

_QUICK = SIZES[:2]


@click.command()
@click.option("--quick", is_flag=True, help="10,000 and 100,000 filters only: under a minute.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only filters of this kind; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of what was measured.")
def match(quick: bool, kinds: tuple[str, ...], as_json: bool) -> None:
    """Events a second that content filters match, memory and time to add one, among up to a million.

    \b
    trunkline bench match --quick
    trunkline bench match --kind mixed --json
    """
    if not CODECS_COMPILED:
        click.echo("The index is plain Python here: compile it with `python tools/compile_codecs.py`.", err=True)
    cases = [(kind, size) for size in (_QUICK if quick else SIZES) for kind in (kinds or KINDS)]
    found: list[Matching] = []
    with progress_bar() as show:
        for kind, size in cases:
            show(f"{kind}, {size:,} filters", len(cases))
            found.append(_measured(kind, size))
    if as_json:
        click.echo(json.dumps([each._asdict() for each in found], indent=2))
        return
    table = Table()
    for heading in ("filters", "kind", "events/s", "matches an event", "to add one", "memory of one"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for each in found:
        table.add_row(
            f"{each.filters:,}",
            each.kind,
            f"{each.events_per_s:,.0f}",
            f"{each.matches_per_event:.1f}",
            f"{each.add_us:.0f} us",
            f"{each.filter_bytes:.0f} B",
        )
    Console().print(table)


def _measured(kind: str, size: int) -> Matching:
    work = f"from trunkline.bench.matching import measure; print(list(measure({kind!r}, {size})))"
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr.strip()[-500:])
    return Matching(*json.loads(done.stdout.replace("'", '"')))
