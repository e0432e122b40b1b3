"""Every snippet of docs/shared-state.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "shared-state.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet(number: int) -> None:
    exec(compile(SNIPPETS[number], f"{PAGE.name}, snippet {number + 1}", "exec"), {"__name__": "__main__"})
