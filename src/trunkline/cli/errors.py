"""Errors as the command line shows them: one line on what is wrong, one on what to do."""

from __future__ import annotations

import sys
from typing import IO, Any, Self

import click


class CommandError(click.ClickException):
    """Ends the command with exit code 1."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {self.message}", file=file or sys.stderr)
        if self.hint:
            click.echo(f"       {self.hint}", file=file or sys.stderr)

    @classmethod
    def of(cls, error: Exception) -> Self | None:
        """What a person is told about an error that they can do something about; None for a fault of ours.

        Only modules that are loaded can have raised their error, so none is imported to find out.
        """
        if isinstance(error, _loaded("trunkline.client.errors", "ClientError")):
            return cls(str(error), str(getattr(error, "hint", "")))
        if isinstance(error, _loaded("trunkline.config", "ConfigError")):
            return cls(str(error), "`trunkline config example` prints every setting and what it means")
        if isinstance(error, _loaded("trunkline.log.errors", "LogError")):
            return cls(str(error))
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            place = f"{error.filename}: " if error.filename else ""
            return cls(f"{place}{error.strerror or error}")
        return None


def _loaded(module: str, name: str) -> type[Exception] | tuple[()]:
    found = getattr(sys.modules.get(module), name, ())
    return found if isinstance(found, type) else ()
