"""`trunkline version`."""

from __future__ import annotations

import platform

import click

from trunkline import CODECS_COMPILED
from trunkline.cli.options import json_option
from trunkline.cli.output import print_json
from trunkline.version import VERSION


@click.command
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json(
            {
                "trunkline": VERSION,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "compiled_codecs": CODECS_COMPILED,
            }
        )
    else:
        codecs = "compiled" if CODECS_COMPILED else "plain"
        click.echo(f"trunkline {VERSION} (Python {platform.python_version()}, {codecs} codecs)")
