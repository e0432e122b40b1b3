"""What a person is told when Spark wraps a Python error in stack traces of two languages."""

from __future__ import annotations

import pytest

from trunkline.pipeline.runner import cause_of

WRAPPED = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when running Python streaming source: Traceback (most recent call last):
  File "source.py", line 140, in _latest
    raise DataLoss(
trunkline.pipeline.planning.DataLoss: orders-0 is not there any more. Set option("failOnDataLoss", "false")
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: out [id = 1, runId = 2]
Current State: ACTIVE
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WRAPPED, 'orders-0 is not there any more. Set option("failOnDataLoss", "false")'),
        ("[CONNECT] first line\nJVM stacktrace:\n\tat x.Y", "[CONNECT] first line"),
        ("ValueError: bad value", "bad value"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_is_the_last_line_of_the_traceback(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause
