"""`trunkline serve`: run a broker in this process.

Every setting of `trunkline.config` is a flag here; the flags are made from its table. What keeps a broker from starting
(a port or data directory that is in use, a directory that cannot be written) is told in one line.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from trunkline.cli.addresses import WILDCARDS, machine_addresses
from trunkline.cli.errors import CommandError
from trunkline.cli.logging_format import start_logging
from trunkline.cli.options import parse_pairs, settings_of
from trunkline.client.connection import join_address
from trunkline.config import SETTINGS, Config, ConfigError, Setting, load
from trunkline.log.errors import DataDirectoryInUse, StorageFailure

_NOT_FLAGS = frozenset({"bootstrap", "user", "password_file", "ca", "cert", "cert_key"})  # of the client commands only
_PORTS = tuple(name for name in SETTINGS if name.endswith("_port"))
_COMMON = frozenset({"data", "host", "kafka_port", "amqp_port", "ready_file", "log_level"})


def _setting_flags(function: Callable[..., None]) -> Callable[..., None]:
    """One option per setting, in the order of the table. Values stay text: the settings' own readers check them."""
    ordered = sorted(SETTINGS.values(), key=lambda setting: setting.name not in _COMMON)
    for setting in reversed([item for item in ordered if item.name not in _NOT_FLAGS]):
        shown = _shown_default(setting)
        doc = f"{setting.doc}  [default: {shown}]" if shown else setting.doc
        if isinstance(setting.default, bool):
            declaration = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
            option = click.option(declaration, setting.name, default=None, help=doc)
        else:
            option = click.option(setting.flag, setting.name, metavar=_metavar(setting), help=doc)
        function = option(function)
    return function


def _shown_default(setting: Setting) -> str:
    if setting.default is None:
        return ""
    return str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)


def _metavar(setting: Setting) -> str:
    if setting.name.endswith("_port"):
        return "N|0|off"
    if setting.name == "data":
        return "DIR"
    if setting.name.endswith("_file"):
        return "FILE"
    return "N" if isinstance(setting.default, int) else "TEXT"


@click.command
@_setting_flags
@click.option(
    "--topic-config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_pairs,
    help="Default for a topic setting; may be repeated.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with settings.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print the banner.")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    *,
    topic_config: list[tuple[str, str]],
    config_file: Path | None,
    quiet: bool,
    **flags: str | bool | None,
) -> None:
    """Run a broker until Ctrl-C.

    Each setting can also come from a TOML file or the environment: `trunkline config show`.

    \b
    trunkline serve
    trunkline serve --data /var/lib/trunkline --host 0.0.0.0 --advertised-host broker.example.org
    trunkline serve --kafka-port 0 --ready-file ready.json
    trunkline serve --topic-config retention.ms=86400000
    """
    try:
        config = settings_of(ctx, flags, topic_flags=dict(topic_config), config_file=config_file)
    except ConfigError as error:
        if error.from_flag:
            raise click.UsageError(str(error)) from None
        raise
    start_logging(config.log_level, config.log_format)
    from trunkline.app import Unsafe
    from trunkline.app import serve as run

    def announce(addresses: Mapping[str, str]) -> None:
        if not quiet:
            click.echo(banner(config, addresses), err=True)

    try:
        code = run(config, announce)
    except OSError as error:
        raise _explained(error, config) from error
    except Unsafe as error:
        raise CommandError(
            str(error),
            f"make a user with `{_command()} user add NAME --tag administrator --data {config.data}`, "
            "or let in whoever comes with --insecure",
        ) from None
    except StorageFailure as error:
        raise _explained_storage(error, config) from error
    ctx.exit(code)


def banner(config: Config, addresses: Mapping[str, str]) -> str:
    """Where everything is, and what to type first."""
    width = max([len("data"), *map(len, addresses)])
    lines = [
        f"  {click.style(name.ljust(width), fg='cyan')}  {_reachable(config, address)}"
        for name, address in addresses.items()
    ]
    lines.append(f"  {click.style('data'.ljust(width), fg='cyan')}  {config.data.resolve()}")
    if "http" in addresses:
        lines += ["", "The page: " + click.style("http://" + addresses["http"] + "/", fg="cyan")]
    kafka = addresses.get("kafka")
    if kafka is not None:
        where = "" if kafka == load().client_bootstrap() else f" --bootstrap {kafka}"
        lines += [
            "",
            "Send a first message from another terminal:",
            f"  echo hello | {_command()} produce greetings{where}",
            f"  {_command()} consume greetings --from-beginning{where}",
        ]
    head = click.style("Trunkline is ready.", fg="green", bold=True) + " Ctrl-C stops it."
    return "\n".join([head, *lines])


def _reachable(config: Config, address: str) -> str:
    """Where clients find a listener: all addresses of this machine if it listens on all of them."""
    host, _, port = address.rpartition(":")
    hosts = [host]
    if config.host in WILDCARDS:
        hosts += machine_addresses(ipv6=":" in config.host)
    if config.advertised_host is not None:
        hosts.append(config.advertised_host)
    return ", ".join(join_address(each.strip("[]"), int(port)) for each in dict.fromkeys(hosts))


def _command() -> str:
    """What to type for this program: its name, or its path where the shell would not find it."""
    if shutil.which("trunkline") is not None:
        return "trunkline"
    path = Path(sys.argv[0])
    return os.path.relpath(path) if path.name == "trunkline" else f"{sys.executable} -m trunkline"


def _explained(error: OSError, config: Config) -> CommandError:
    setting, port = _listener_of(error, config)
    where, flag = f"{config.host}:{port}", "--" + setting.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return CommandError(
            f"{where} is in use by another process",
            f"stop that process, or choose another port with {flag} (0 takes a free one, off does without)",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return CommandError(f"this machine has no address {config.host}", "choose another with --host")
    if error.errno == errno.EACCES and error.filename is None:
        return CommandError(f"not allowed to listen on {where}", f"choose a port above 1023 with {flag}")
    if isinstance(error, socket.gaierror):
        return CommandError(f"{config.host}: {error.strerror or error}", "choose another address with --host")
    if not isinstance(error.filename, str | Path):
        return CommandError(str(error.strerror or error))
    ready = config.ready_file is not None and Path(error.filename).parent == config.ready_file.parent
    hint = "choose another file with --ready-file" if ready else "choose another data directory with --data"
    return CommandError(f"{os.fspath(error.filename)}: {error.strerror or error}", hint)


def _listener_of(error: OSError, config: Config) -> tuple[str, int | None]:
    """The setting whose port could not be had: asyncio names the port in its text, and nowhere else."""
    named = re.search(r"\('[^']*', (\d+)", str(error))
    for setting in _PORTS:
        port = getattr(config, setting)
        if named is not None and port == int(named[1]):
            return setting, port
    return "kafka_port", config.kafka_port


def _explained_storage(error: StorageFailure, config: Config) -> CommandError:
    if isinstance(error, DataDirectoryInUse):
        return CommandError(str(error), "stop that broker, or choose another directory with --data")
    for place in (config.data, *config.data.parents):
        if place.exists():
            if not place.is_dir():
                return CommandError(f"{place} is a file, not a directory", "choose a directory with --data")
            break
    return CommandError(str(error), "make it writable, or choose another directory with --data")
