"""A real Celery application with SQS as its broker: tasks, retries, tasks for later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.aws.conftest import endpoint
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def application(aws: ServerProcess, tmp_path: Path) -> Iterator[Any]:
    environment = {
        "TEST_ENDPOINT": endpoint(aws),
        "TEST_QUEUE": f"celery-{os.urandom(4).hex()}",
        "TEST_DIRECTORY": str(tmp_path),
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    patch = pytest.MonkeyPatch()
    for name, value in environment.items():
        patch.setenv(name, value)
    patch.delitem(sys.modules, "tests.integration.aws.celery_app", raising=False)
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.aws.celery_app", "worker"]
    command += ["--concurrency", "1", "--pool", "solo", "--loglevel", "INFO"]
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
    try:
        wait_until(lambda: " ready." in log.read_text(errors="replace") or worker.poll() is not None, 60, "the worker")
        assert worker.poll() is None, log.read_text(errors="replace")
        from tests.integration.aws import celery_app

        yield celery_app
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        patch.undo()


def test_tasks_are_done_retried_and_put_off(application: Any, tmp_path: Path) -> None:
    for number in range(5):
        application.note.delay(f"task-{number}")
    application.flaky.delay("flaky")
    application.note.apply_async(("later",), countdown=2)
    names = [*(f"task-{number}" for number in range(5)), "flaky", "later"]
    wait_until(lambda: all((tmp_path / name).exists() for name in names), 60, "the tasks")
    assert (tmp_path / "flaky").read_text() == "done at last"
