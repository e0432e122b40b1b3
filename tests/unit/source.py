"""The source as trees, for the tests that read rules off it."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trunkline"


@cache
def parsed(path: Path) -> ast.Module:
    """With the collector off: early releases of Python 3.11 fail to parse when a collection runs finalizers meanwhile
    (CPython gh-106905)."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()
