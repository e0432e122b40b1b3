"""`trunkline version`."""

from __future__ import annotations

import platform

import click

from trunkline.cli.options import json_option
from trunkline.cli.output import print_json
from trunkline.version import VERSION


@click.command
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json({"trunkline": VERSION, "python": platform.python_version(), "platform": platform.platform()})
    else:
        click.echo(f"trunkline {VERSION} (Python {platform.python_version()})")
