"""Options that many commands share, and the words that people write for times, offsets and pairs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from trunkline.cli.login_options import NAMES, login_of, login_options
from trunkline.cli.output import remark

if TYPE_CHECKING:
    from trunkline.client import Client
    from trunkline.config import Config

P = ParamSpec("P")

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def json_option(function: Callable[P, None]) -> Callable[P, None]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def client_options(function: Callable[Concatenate[Client, P], None]) -> Callable[..., None]:
    """Adds `--bootstrap` and `--request-timeout`; the command gets the client that they describe, and it is closed after."""

    @click.option(
        "-b", "--bootstrap", metavar="HOST:PORT", help="Broker to talk to.  [default: 127.0.0.1:9092, or as configured]"
    )
    @click.option(
        "--request-timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1, max=3600),
        default=30.0,
        metavar="SECONDS",
        help="How long to wait for an answer, and to try again.  [default: 30]",
    )
    @login_options
    @click.pass_context
    @functools.wraps(function)
    def command(
        ctx: click.Context, /, bootstrap: str | None, timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        who = {name: kwargs.pop(name) for name in NAMES}
        with open_client(ctx, bootstrap, timeout_s, who) as client:
            function(client, *args, **kwargs)

    return command


def open_client(
    ctx: click.Context, bootstrap: str | None, timeout_s: float, who: Mapping[str, object] | None = None
) -> Client:
    """`who` is what `login_options` were given."""
    from trunkline.client import Client

    if bootstrap is not None and not bootstrap.strip():
        raise click.BadParameter("it is empty; write HOST:PORT", param_hint="--bootstrap")
    config = settings_of(ctx, {"bootstrap": bootstrap, **(who or {})})
    return Client(config.client_bootstrap(), timeout_ms=int(timeout_s * 1000), login=login_of(config))


def settings_of(
    ctx: click.Context,
    flags: Mapping[str, object] | None = None,
    *,
    topic_flags: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Config:
    """The settings, from every source; the person is told of what was perhaps meant to be one."""
    from trunkline.config import load

    config = load(flags, topic_flags=topic_flags, config_file=config_file or config_file_of(ctx))
    for warning in config.warnings:
        remark(f"{click.style('warning:', fg='yellow')} {warning}")
    return config


def config_file_of(ctx: click.Context) -> Path | None:
    found = ctx.find_root().obj
    return found if isinstance(found, Path) else None


def parse_pairs(
    _ctx: click.Context | None, param: click.Parameter | None, values: Iterable[str]
) -> list[tuple[str, str]]:
    """`name=value` options, in order."""
    found = []
    for item in values:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", param=param)
        found.append((name.strip(), value))
    return found


def parse_since(text: str, now_ms: int) -> int:
    """`10m`, `2h30m`, `1d` (that long ago) or an ISO time (local unless it names a zone), as epoch milliseconds."""
    word = text.strip().lower()
    spans = list(_SPAN.finditer(word))
    if spans and "".join(match[0] for match in spans) == word:
        return now_ms - int(sum(float(match[1]) * _UNITS_MS[match[2]] for match in spans))
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a span such as 10m, 2h or 1d nor a time such as 2026-01-31T12:00",
            param_hint="--since",
        ) from None
