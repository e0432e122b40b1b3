"""What a person is told when Spark wraps a Python error in stack traces of two languages."""

from __future__ import annotations

import pytest

from trunkline.pipeline.causes import LATE_WORKER, cause_of, is_late_worker, refusal_of
from trunkline.pipeline.patience import MAX_LATE, MAX_PAUSE_S, Patience

WRAPPED = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when running Python streaming source: Traceback (most recent call last):
  File "source.py", line 140, in _latest
    raise DataLoss(
trunkline.pipeline.planning.DataLoss: orders-0 is not there any more. Set option("failOnDataLoss", "false")
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: out [id = 1, runId = 2]
Current State: ACTIVE
"""

LATE = "org.apache.spark.SparkException: Python worker failed to connect back."


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WRAPPED, 'orders-0 is not there any more. Set option("failOnDataLoss", "false")'),
        ("[CONNECT] first line\nJVM stacktrace:\n\tat x.Y", "[CONNECT] first line"),
        ("ValueError: bad value", "bad value"),
        ("", "RuntimeError"),
        (f"[STREAM_FAILED] x\n{LATE}\n\tat org.apache.spark.api.python.PythonWorkerFactory", LATE_WORKER),
    ],
)
def test_the_cause_is_the_last_line_of_the_traceback(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause


class Refused(Exception):
    """As PySpark's errors are asked."""

    def __init__(self, condition: str, parameters: dict[str, str], text: str = "") -> None:
        super().__init__(text)
        self._said = condition, parameters

    def getCondition(self) -> str:  # noqa: N802 (Spark's name)
        return self._said[0]

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802
        return self._said[1]


def test_a_misspelt_view_is_one_sentence_with_the_nearest_name() -> None:
    misspelt = Refused("TABLE_OR_VIEW_NOT_FOUND", {"relationName": "`ordrs`", "searchPath": "[`system`]"}, "pages")
    assert refusal_of(misspelt, ["orders", "large"]) == "there is no view 'ordrs'; did you mean orders?"
    assert refusal_of(misspelt, ["x", "y"]) == "there is no view 'ordrs': there is x, y"
    assert refusal_of(Refused("PARSE", {}, "\nfirst\nsecond"), ["x"]) == "first"


def test_late_workers_are_waited_for_a_few_times_with_growing_pauses() -> None:
    said: list[str] = []
    pauses: list[float] = []
    failures = [RuntimeError(LATE)] * 3

    def action() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert Patience(said.append, sleep=pauses.append).run(action) == "done"
    assert pauses == [1.0, 2.0, 4.0]
    assert said[0] == f"{LATE_WORKER}; trying again in 1 s (1 of {MAX_LATE})"
    assert all("\n" not in line for line in said)


def test_late_workers_are_not_waited_for_for_ever_and_other_errors_not_at_all() -> None:
    said: list[str] = []
    pauses: list[float] = []

    def late() -> None:
        raise ValueError("the definition") from RuntimeError(LATE)

    with pytest.raises(ValueError, match="the definition") as raised:
        Patience(said.append, sleep=pauses.append).run(late)
    assert is_late_worker(raised.value)
    assert (len(pauses), len(said)) == (MAX_LATE, MAX_LATE)
    assert max(pauses) <= MAX_PAUSE_S

    def wrong() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Patience(said.append, sleep=pauses.append).run(wrong)
    assert len(said) == MAX_LATE
