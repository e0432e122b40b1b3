"""Who the command line is: `--user`, `--password-file`, `--ca`, `--cert`, `--cert-key`, or the settings of these names.

Passwords come from a file, from the environment (`TRUNKLINE_PASSWORD`) or from the terminal: the arguments of a process can be
read by everybody on the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import click

from trunkline.cli.errors import CommandError

if TYPE_CHECKING:
    from trunkline.client.login import Login, Tls
    from trunkline.config import Config

P = ParamSpec("P")
PASSWORD_VARIABLE = "TRUNKLINE_PASSWORD"
NAMES = ("user", "password_file", "ca", "cert", "cert_key")
_MAX_PASSWORD_BYTES = 64 * 1024


def login_options(function: Callable[P, None]) -> Callable[P, None]:
    """Adds the options of `NAMES`, which a command hands to `settings_of`."""
    for option in (
        click.option("--cert-key", metavar="FILE", help="PEM file with the private key of --cert."),
        click.option("--cert", metavar="FILE", help="PEM file with a certificate to show to the broker."),
        click.option("--ca", metavar="FILE|system", help="Speak TLS, and believe the CAs in this PEM file."),
        click.option(
            "--password-file",
            metavar="FILE",
            help=f"File whose first line is the password.  [default: ${PASSWORD_VARIABLE}]",
        ),
        click.option("--user", metavar="NAME", help="User to log in as."),
    ):
        function = option(function)
    return function


def password_of(config: Config) -> str | None:
    """Of the user that the command line logs in as; None if none is said."""
    if config.password_file is not None:
        return first_line(config.password_file)
    return os.environ.get(PASSWORD_VARIABLE)


def first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_PASSWORD_BYTES).split(b"\n")[0].rstrip(b"\r").decode()
    except ValueError:
        raise CommandError(f"{path} is not UTF-8") from None


def tls_of(config: Config) -> Tls | None:
    if config.ca is None and config.cert is None:
        return None
    from trunkline.client.login import SYSTEM, Tls

    ca = config.ca or SYSTEM
    if ca != SYSTEM and not Path(ca).expanduser().is_file():
        raise CommandError(f"{ca}: there is no such file", "name the broker's CA with --ca FILE")
    return Tls(
        ca if ca == SYSTEM else str(Path(ca).expanduser()),
        None if config.cert is None else str(config.cert),
        None if config.cert_key is None else str(config.cert_key),
    )


def login_of(config: Config) -> Login:
    from trunkline.client.login import Login

    if config.user is None:
        return Login(tls=tls_of(config))
    password = password_of(config)
    if password is None:
        if not sys.stdin.isatty():
            raise CommandError(
                f"no password for {config.user}", f"name a file with --password-file, or set {PASSWORD_VARIABLE}"
            )
        password = click.prompt(f"Password of {config.user}", hide_input=True, err=True)
    return Login(config.user, password, tls_of(config))
