"""A real Celery application with worker processes: results, retries, ETA, chains, and a worker that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from tests.integration.amqp.brokers import AmqpBroker, url
from tests.integration.amqp.conftest import open_connection
from tests.integration.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RESULT_SECONDS = 60.0
ROOT = Path(__file__).parents[3]


class CeleryApp:
    """The application on one broker and queue, and the workers that serve it."""

    def __init__(self, broker_url: str, queue: str, directory: Path) -> None:
        self.directory = directory
        self._environment = {
            **os.environ,
            "TEST_BROKER_URL": broker_url,
            "TEST_QUEUE": queue,
            "TEST_DIRECTORY": str(directory),
            "PYTHONPATH": str(ROOT),
        }
        self._workers: list[subprocess.Popen[bytes]] = []
        self.tasks: Any = None

    def start_worker(self, concurrency: int = 2, queue: str | None = None) -> subprocess.Popen[bytes]:
        number = len(self._workers)
        command = [sys.executable, "-m", "celery", "-A", "tests.integration.amqp.celery_app", "worker"]
        command += ["--concurrency", str(concurrency), "--hostname", f"w{number}@%h", "--loglevel", "INFO"]
        command += ["--queues", queue] if queue else []
        with (self.directory / f"worker-{number}.log").open("wb") as log:
            worker = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, cwd=ROOT, start_new_session=True
            )
        self._workers.append(worker)
        wait_until(lambda: self._is_ready(worker, number), what="the worker's start")
        return worker

    def log(self, number: int) -> str:
        return (self.directory / f"worker-{number}.log").read_text(errors="replace")

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """With its children: they are in a session of their own."""
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def close(self) -> None:
        for worker in self._workers:
            self.kill(worker)

    def _is_ready(self, worker: subprocess.Popen[bytes], number: int) -> bool:
        assert worker.poll() is None, self.log(number)
        return " ready." in self.log(number)


@pytest.fixture(scope="module")
def application(amqp: AmqpBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryApp]:
    directory = tmp_path_factory.mktemp("celery")
    queue = f"celery-{os.urandom(4).hex()}"
    app = CeleryApp(url(amqp), queue, directory)
    patch = pytest.MonkeyPatch()
    for name in ("TEST_BROKER_URL", "TEST_QUEUE", "TEST_DIRECTORY"):
        patch.setenv(name, app._environment[name])
    from tests.integration.amqp import celery_app

    app.tasks = celery_app
    try:
        app.start_worker()
        yield app
    finally:
        app.close()
        patch.undo()
        celery_app.app.close()
        connection = open_connection(amqp)
        connection.channel().queue_delete(queue)
        connection.close()


def test_tasks_return_results(application: CeleryApp) -> None:
    results = [application.tasks.add.delay(number, number) for number in range(30)]
    assert [result.get(RESULT_SECONDS) for result in results] == [2 * number for number in range(30)]


def test_a_failing_task_is_retried_until_it_succeeds(application: CeleryApp, unique: Callable[[str], str]) -> None:
    assert application.tasks.flaky.delay(unique("flaky"), 3).get(RESULT_SECONDS) == 4


def test_an_exception_comes_back(application: CeleryApp) -> None:
    with pytest.raises(RuntimeError, match="as it must"):
        application.tasks.broken.delay().get(RESULT_SECONDS)


def test_a_countdown_and_an_eta_are_waited_for(application: CeleryApp, unique: Callable[[str], str]) -> None:
    begin = time.time()
    later = application.tasks.stamp.apply_async([unique("later")], countdown=2)
    dated = application.tasks.stamp.apply_async([unique("dated")], eta=datetime.now(UTC) + timedelta(seconds=1.5))
    now = application.tasks.stamp.delay(unique("now"))
    assert now.get(RESULT_SECONDS) <= dated.get(RESULT_SECONDS) <= later.get(RESULT_SECONDS)
    assert dated.get(RESULT_SECONDS) - begin >= 1.5
    assert later.get(RESULT_SECONDS) - begin >= 2.0


def test_tasks_that_wait_for_their_eta_do_not_stall_the_worker(
    application: CeleryApp, unique: Callable[[str], str]
) -> None:
    """More of them than the worker may prefetch: it asks for more, and gets it only if prefetch is per consumer."""
    for _ in range(10):
        application.tasks.stamp.apply_async([unique("waiting")], countdown=3_600)
    begin = time.time()
    assert application.tasks.stamp.delay(unique("now")).get(RESULT_SECONDS) >= begin


def test_tasks_chain(application: CeleryApp) -> None:
    add = application.tasks.add
    assert (add.s(1, 2) | add.s(3) | add.s(4)).delay().get(RESULT_SECONDS) == 10


def test_a_revoked_task_is_not_run(application: CeleryApp, unique: Callable[[str], str]) -> None:
    name = unique("revoked")
    result = application.tasks.stamp.apply_async([name], countdown=3)
    application.tasks.app.control.revoke(result.id)
    wait_until(lambda: result.id in application.log(0), what="the worker's hearing of it")
    with pytest.raises(TaskRevokedError):
        result.get(RESULT_SECONDS)
    assert not (application.directory / name).exists()


def test_workers_answer_to_remote_control(application: CeleryApp) -> None:
    answers = wait_until(lambda: application.tasks.app.control.ping(timeout=2.0), what="an answer to ping")
    assert [answer["ok"] for each in answers for answer in each.values()] == ["pong"]


def test_a_worker_of_several_queues_serves_them_alike(
    application: CeleryApp, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> None:
    queues, count = [unique("celery-left"), unique("celery-right")], 60
    scrapped[0].extend(queues)
    for queue in queues:
        for _ in range(count):
            application.tasks.stamp.apply_async([queue], queue=queue, ignore_result=True)
    worker = application.start_worker(concurrency=1, queue=",".join(queues))

    def done() -> list[tuple[float, str]]:
        """When which queue's tasks were done, in order."""
        notes = [application.directory / queue for queue in queues]
        return sorted(
            (float(line), note.name) for note in notes if note.exists() for line in note.read_text().splitlines()
        )

    wait_until(lambda: len(done()) >= count, RESULT_SECONDS, what="the tasks")
    application.kill(worker)
    first = [queue for _, queue in done()[:count]]
    assert min(first.count(queue) for queue in queues) >= count // 4, first


def test_a_killed_workers_task_is_done_by_another(
    application: CeleryApp, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> None:
    name, queue = unique("slow"), unique("celery-own")
    scrapped[0].append(queue)
    doomed = application.start_worker(concurrency=1, queue=queue)
    result = application.tasks.slow.apply_async([name, 1.0], queue=queue)
    wait_until((application.directory / name).exists, what="the task's start")
    application.kill(doomed)
    heir = application.start_worker(concurrency=1, queue=queue)
    assert result.get(RESULT_SECONDS) == 2  # the attempts that were written down
    application.kill(heir)
