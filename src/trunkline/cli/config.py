"""`trunkline config`: what is set, and by whom."""

from __future__ import annotations

from pathlib import Path

import click

from trunkline.cli.options import json_option, settings_of
from trunkline.cli.output import Json, print_json, print_table
from trunkline.config import SETTINGS, Config
from trunkline.config import example as example_text


@click.group
def config() -> None:
    """Show settings and where each comes from.

    Sources, later ones win: defaults, the TOML file, the environment (TRUNKLINE_…), flags.
    """


@config.command
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="TOML file."
)
@json_option
@click.pass_context
def show(ctx: click.Context, config_file: Path | None, as_json: bool) -> None:
    """Print every setting, its value and its origin.

    \b
    trunkline config show
    TRUNKLINE_KAFKA_PORT=19092 trunkline config show --json
    """
    found = settings_of(ctx, config_file=config_file)
    rows = [(name, _value(found, name), found.origins[name]) for name in SETTINGS]
    rows += [(f"topic.{name}", value, found.origins[f"topic.{name}"]) for name, value in sorted(found.topic.items())]
    if as_json:
        print_json({name: {"value": value, "origin": origin} for name, value, origin in rows})
    else:
        print_table(("setting", "value", "origin"), [(name, _shown(value), origin) for name, value, origin in rows])


@config.command
def example() -> None:
    """Print a TOML file with every setting, its meaning and its default.

    \b
    trunkline config example > trunkline.toml
    """
    click.echo(example_text(), nl=False)


def _value(found: Config, name: str) -> Json:
    value = getattr(found, name)
    if name.endswith("_port") and value is None:
        return "off"
    return value if value is None or isinstance(value, bool | int) else str(value)


def _shown(value: Json) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
