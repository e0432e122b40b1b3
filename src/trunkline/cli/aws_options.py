"""Options of the commands that talk SQS and SNS: where the broker is, and whose key requests are signed with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from trunkline.cli.options import settings_of

if TYPE_CHECKING:
    from trunkline.client.aws import AwsClient

P = ParamSpec("P")


def aws_options(function: Callable[Concatenate[AwsClient, P], None]) -> Callable[..., None]:
    """Adds `--endpoint-url`, `--access-key` and `--secret-key`; the command gets a client, and it is closed after."""

    @click.option(
        "--endpoint-url", metavar="URL", help="Broker to talk to.  [default: http://127.0.0.1:4566, or as configured]"
    )
    @click.option("--access-key", envvar="AWS_ACCESS_KEY_ID", default="", metavar="USER", help="User that signs.")
    @click.option("--secret-key", envvar="AWS_SECRET_ACCESS_KEY", default="", metavar="SECRET", help="Its secret.")
    @click.pass_context
    @functools.wraps(function)
    def command(
        ctx: click.Context,
        /,
        endpoint_url: str | None,
        access_key: str,
        secret_key: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        from trunkline.client.aws import AwsClient

        if endpoint_url is None:
            config = settings_of(ctx)
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(config.host, config.host)
            endpoint_url = f"http://{host}:{config.aws_port or 4566}"
        with AwsClient(endpoint_url, user=access_key, secret=secret_key) as client:
            function(client, *args, **kwargs)

    return command
