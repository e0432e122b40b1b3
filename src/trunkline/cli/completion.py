"""`trunkline completion`: what a shell needs to complete our commands and options."""

from __future__ import annotations

import click

_WHERE = {
    "bash": "trunkline completion bash > ~/.local/share/bash-completion/completions/trunkline",
    "zsh": "trunkline completion zsh > ~/.zfunc/_trunkline   # with ~/.zfunc in fpath",
    "fish": "trunkline completion fish > ~/.config/fish/completions/trunkline.fish",
}


@click.command(epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(tuple(_WHERE)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    program = ctx.find_root().command
    click.echo(kind(program, {}, "trunkline", "_TRUNKLINE_COMPLETE").source())
