"""The examples in examples/kafka do what their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.server import RestartableBroker
from tests.integration.waiting import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples" / "kafka"
EXAMPLE_SECONDS = 90.0


def test_workers_share_tasks_try_again_and_set_aside(fresh_broker: RestartableBroker, tmp_path: Path) -> None:
    environment = {**os.environ, "KAFKA_BOOTSTRAP": fresh_broker.bootstrap}
    output = tmp_path / "worker.txt"
    with output.open("wb") as file:
        worker = subprocess.Popen(
            [sys.executable, "share_worker.py", "--count", "4"], stdout=file, cwd=EXAMPLES, env=environment
        )
    try:
        wait_until(lambda: "ready" in output.read_text() or worker.poll() is not None, what="the worker")
        tasks = ["one.", "two", "fail once", "hopeless"]
        sent = subprocess.run(
            [sys.executable, "share_new_task.py", *tasks],
            capture_output=True, text=True, cwd=EXAMPLES, env=environment, timeout=EXAMPLE_SECONDS, check=True,
        )  # fmt: skip
        assert sent.stdout == "sent 4\n"
        assert worker.wait(EXAMPLE_SECONDS) == 0
    finally:
        worker.kill()
    assert sorted(output.read_text().splitlines()) == [
        *("done fail once", "done one.", "done two", "failed fail once", "ready", "set aside hopeless"),
    ]
