"""Trunkline: one log, every way to message.

`Broker` and `run` start a real broker inside an application or a test; `trunkline serve` starts one as a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline import compiled

__version__ = "0.1.0"
__all__ = ["Broker", "__version__", "run"]

CODECS_COMPILED = compiled.choose()  # before any codec is imported

if TYPE_CHECKING:
    from trunkline.app import Broker, run


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    # Imported on first use: `import trunkline` alone, as the command line does for --help, stays cheap.
    if name in {"Broker", "run"}:
        from trunkline import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
