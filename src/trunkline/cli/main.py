"""`trunkline`: the list of commands, and the one place where errors become exit codes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

from trunkline.cli.errors import CommandError
from trunkline.version import VERSION, install_command


class _Entry(NamedTuple):
    module: str
    attribute: str
    summary: str


_COMMANDS = {
    "serve": _Entry("trunkline.cli.serve", "serve", "Run a broker."),
    "topic": _Entry("trunkline.cli.topic", "topic", "Create, list, describe, alter and delete topics."),
    "produce": _Entry("trunkline.cli.produce", "produce", "Send lines of text as records."),
    "consume": _Entry("trunkline.cli.consume", "consume", "Print the records of a topic."),
    "group": _Entry("trunkline.cli.group", "group", "List, describe, reset and delete consumer groups."),
    "queue": _Entry("trunkline.cli.queue", "queue", "List, declare, look into and move messages between queues."),
    "exchange": _Entry("trunkline.cli.exchange", "exchange", "List, declare and delete exchanges."),
    "binding": _Entry("trunkline.cli.binding", "binding", "List, add and remove bindings."),
    "publish": _Entry("trunkline.cli.publish", "publish", "Publish a message to an exchange."),
    "get": _Entry("trunkline.cli.publish", "get", "Take messages off a queue."),
    "definitions": _Entry(
        "trunkline.cli.definitions", "definitions", "Export and import what is declared, as one file."
    ),
    "user": _Entry("trunkline.cli.user", "user", "Add, list and delete users, and set their passwords."),
    "tls": _Entry("trunkline.cli.tls", "tls", "Make certificates for TLS."),
    "acl": _Entry("trunkline.cli.acl", "acl", "Add, list, remove and try out rules: who may do what."),
    "audit": _Entry("trunkline.cli.audit", "audit", "Show logins, refusals and administrative changes."),
    "mqtt": _Entry("trunkline.cli.mqtt", "mqtt", "Subscribe to MQTT topics and publish to them."),
    "stomp": _Entry("trunkline.cli.stomp", "stomp", "Send to STOMP destinations and subscribe to them."),
    "session": _Entry("trunkline.cli.session", "session", "List, show and end MQTT sessions."),
    "retained": _Entry("trunkline.cli.retained", "retained", "List and clear retained MQTT messages."),
    "sqs": _Entry("trunkline.cli.sqs", "sqs", "Create, send to, receive from and redrive queues as SQS has them."),
    "sns": _Entry("trunkline.cli.sns", "sns", "Create, subscribe to and publish to topics as SNS has them."),
    "pipeline": _Entry("trunkline.cli.pipeline", "pipeline", "Run data pipelines on Spark."),
    "lab": _Entry("trunkline.cli.lab", "lab", "Simulate gossip and membership, beside published figures."),
    "log": _Entry("trunkline.cli.log", "log", "Look into segment files."),
    "config": _Entry("trunkline.cli.config", "config", "Show settings and where each comes from."),
    "top": _Entry("trunkline.cli.top", "top", "Watch rates, queues and groups in the terminal."),
    "work": _Entry("trunkline.cli.work", "work", "Run the functions of an application that handle messages."),
    "bench": _Entry("trunkline.bench.cli", "bench", "Measure a broker, also against Apache Kafka."),
    "completion": _Entry("trunkline.cli.completion", "completion", "Print the completion script of a shell."),
    "version": _Entry("trunkline.cli.version", "version", "Print the version."),
}


_EXTRAS = {"pipeline": "spark"}  # the optional part that a command needs, where it has another name


class CommandGroup(click.Group):
    """Knows its commands by name and summary, and imports one only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            command = getattr(import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == "trunkline":
                raise
            extras = _EXTRAS.get(cmd_name, cmd_name)
            raise CommandError(
                f"`trunkline {cmd_name}` needs the package {error.name}", install_command(extras)
            ) from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in _COMMANDS:
            from difflib import get_close_matches  # not on the way of every start

            near = get_close_matches(args[0], _COMMANDS)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo(err=True)  # behind the ^C that the terminal shows
            raise click.exceptions.Exit(128 + 2) from None  # as a shell says SIGINT
        except Exception as error:
            known = CommandError.of(error)
            if known is None:
                raise
            raise known from error


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command has its own --help with examples. Settings: `trunkline config example`.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with settings.  [default: ./trunkline.toml]",
)
@click.version_option(VERSION, prog_name="trunkline")
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None) -> None:
    """One log, every way to message.

    \b
    trunkline serve                               run a broker on 127.0.0.1:9092
    echo hello | trunkline produce greetings      send a record
    trunkline consume greetings --from-beginning  read it back
    """
    ctx.obj = config_file


def main() -> None:
    cli(prog_name="trunkline")
