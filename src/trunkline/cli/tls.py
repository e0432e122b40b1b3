"""`trunkline tls`: certificates to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.output import remark
from trunkline.version import install_command


@click.group
def tls() -> None:
    """Make certificates for TLS."""


@tls.command("self-signed")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", "names", multiple=True, metavar="HOST", help="Host name or address that the broker is reached by, beside this machine's own; may be repeated.")  # fmt: skip
@click.option("--client", "clients", multiple=True, default=("client",), metavar="NAME", help="User to make a client certificate for; may be repeated.  [default: client]")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 36_500), default=365, show_default=True, metavar="N", help="How long they are valid.")  # fmt: skip
def self_signed(directory: Path, names: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make a CA, a certificate for the broker and one for each client, in DIRECTORY.

    \b
    trunkline tls self-signed certificates --name broker.example.org --client alice
    trunkline serve --tls-certificate certificates/server.pem --tls-key certificates/server.key
    """
    from trunkline.security.self_signed import FilesExist, make

    for client in clients:
        if not client or "/" in client or client in {"ca", "server", ".", ".."}:
            raise click.BadParameter(f"{client!r} cannot be the name of a client's file", param_hint="--client")
    try:
        files = make(directory, names=names, clients=clients, days=days)
    except FilesExist as error:
        raise CommandError(f"{error} is there already", "choose another directory, or remove it") from None
    except ModuleNotFoundError as error:
        raise CommandError(f"`trunkline tls` needs the package {error.name}", install_command("tls")) from None
    remark(f"wrote {', '.join(path.name for path in files)} in {directory}")
    remark(
        f"serve with: trunkline serve --tls-certificate {directory / 'server.pem'} --tls-key {directory / 'server.key'}"
    )
    remark(f"clients trust {directory / 'ca.pem'}")
