"""What an error of Spark says, in one line: Spark wraps Python's errors in stack traces of two languages.

A Python worker that comes late is a cause of its own. Spark starts a Python process for every streaming source, gives it ten
seconds to connect back, and has no setting for that: on a busy machine it is too little, and nothing is wrong but that.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final, Protocol

LATE_WORKER: Final = "a Python worker of Spark did not start within ten seconds: the machine is busy"
_LATE: Final = "Python worker failed to connect back"
_NO_VIEW: Final = "TABLE_OR_VIEW_NOT_FOUND"
_MAX_CHARS: Final = 2_000
# The last line of a Python traceback, wherever Spark put it.
_RAISED: Final = re.compile(r"(?:Caused by: )?(?:[a-z_]\w*\.)*[A-Z]\w*[a-z]\w*: (?P<said>\S.*)")


class SparkError(Protocol):
    """What we use of PySpark's errors."""

    def getCondition(self) -> str | None: ...  # noqa: N802 (Spark's names)
    def getMessageParameters(self) -> dict[str, str] | None: ...  # noqa: N802


def cause_of(error: BaseException) -> str:
    """The line of an error that says what is wrong."""
    if is_late_worker(error):
        return LATE_WORKER
    text = str(error).split("=== Streaming Query ===")[0].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [match for line in lines if (match := _RAISED.match(line))]
    if raised:
        return raised[-1]["said"][:_MAX_CHARS]
    return (lines[0] if lines else type(error).__name__)[:_MAX_CHARS]


def is_late_worker(error: BaseException | None) -> bool:
    """Whether trying again is all that is to be done."""
    while error is not None:
        if _LATE in str(error):
            return True
        error = error.__cause__
    return False


def refusal_of(error: SparkError, views: Iterable[str]) -> str:
    """Why Spark does not take a query over these views."""
    if error.getCondition() != _NO_VIEW:
        return next((line for line in str(error).splitlines() if line.strip()), "")
    name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
    return f"there is no view {name!r}{meant_by(name, views)}"


def meant_by(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f": there is {', '.join(names)}"
