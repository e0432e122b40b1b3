"""Where Spark writes while a person watches something shorter: a file, begun anew by every run.

Into it go the standard error of Spark's JVM, which is also that of its Python workers, PySpark's own log of errors (JSON, several
kilobytes each), and the whole traceback of what ended a run. Whoever shows one line of an error says the path too.

Limit: `MAX_LOG_BYTES`. A log that has grown larger is emptied; the JVM writes on at its end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

MAX_LOG_BYTES: Final = 16 << 20
_STDERR: Final = 2
_PYSPARK_LOGGER: Final = "SQLQueryContextLogger"
_FIRST_LINES: Final = 20
_NO_COMPLAINTS: Final = ("WARNING", "Using ", "Setting ", "To adjust ", "Picked up ")
_THROWN: Final = re.compile(r'^Exception in thread "[^"]*" [\w.$]+: ')


@dataclass(frozen=True)
class SparkLog:
    path: Path

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Start Spark in here: the JVM takes over what standard error is at that moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.flush()
        kept = os.dup(_STDERR)
        # For appending, so that it can be emptied under whoever writes to it.
        log = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.dup2(log, _STDERR)
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
            os.close(log)
        self._take_over_pyspark()

    def note(self, error: BaseException) -> None:
        """Keep the whole traceback."""
        with contextlib.suppress(OSError), open(self.path, "a", encoding="utf-8") as log:
            log.write("".join(traceback.format_exception(error)))

    def first_complaint(self) -> str | None:
        """What a JVM that did not come up said first."""
        with contextlib.suppress(OSError), open(self.path, encoding="utf-8", errors="replace") as log:
            for line in islice(log, _FIRST_LINES):
                if line.strip() and not line.startswith(_NO_COMPLAINTS):
                    return _THROWN.sub("", line.strip())
        return None

    def keep_small(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self.path, 0)

    def _take_over_pyspark(self) -> None:
        from pyspark.logger import PySparkLogger

        logger = PySparkLogger.getLogger(_PYSPARK_LOGGER)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.addHandler(logging.FileHandler(self.path, delay=True))
        logger.propagate = False
