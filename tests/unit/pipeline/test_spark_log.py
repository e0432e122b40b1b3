"""Spark's log is a file: what a child process writes to standard error from within, whole traces, and never too large."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger

from trunkline.pipeline import spark_log
from trunkline.pipeline.spark_log import SparkLog

SAY = [sys.executable, "-c", "import os, sys; os.write(2, sys.argv[1].encode())"]
READ_AND_SAY = [sys.executable, "-c", "import os, sys; [os.write(2, line.encode()) for line in sys.stdin]"]


def test_what_is_launched_within_writes_to_the_file_and_nothing_after(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = SparkLog(tmp_path / "v1" / "spark.log")
    with log.launching():
        subprocess.run([*SAY, "from the child"], check=True)
    subprocess.run([*SAY, "afterwards"], check=True)
    PySparkLogger.getLogger("SQLQueryContextLogger").error("several kilobytes of JSON")
    try:
        raise ValueError("one line") from RuntimeError("pages of Java")
    except ValueError as error:
        log.note(error)
    kept = log.path.read_text()
    for text in ("from the child", "several kilobytes of JSON", "pages of Java", "ValueError: one line"):
        assert text in kept
    assert capfd.readouterr().err == "afterwards"
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_has_grown_is_emptied_under_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_log, "MAX_LOG_BYTES", 100)
    log = SparkLog(tmp_path / "spark.log")
    log.keep_small()  # there is none yet
    with log.launching():
        child = subprocess.Popen(READ_AND_SAY, stdin=subprocess.PIPE, text=True)
    try:
        assert child.stdin is not None
        os.truncate(log.path, 101)
        log.keep_small()
        assert log.path.read_bytes() == b""
        child.communicate("goes on\n", timeout=30)
    finally:
        child.kill()
    assert log.path.read_bytes() == b"goes on\n"
