"""A Celery application for the tests: `celery -A tests.integration.amqp.celery_app worker`.

The broker's URL and the directory where tasks leave what they did come from the environment.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("tests", broker=os.environ["TEST_BROKER_URL"], backend="rpc://")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_default_queue=os.environ["TEST_QUEUE"],
    result_expires=300,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
    event_queue_prefix=os.environ["TEST_QUEUE"],
    broker_transport_options={"confirm_publish": True},
)
DONE = Path(os.environ["TEST_DIRECTORY"])


class NotYet(Exception):
    """What `flaky` raises until it has been tried often enough."""


def note(name: str) -> int:
    """Write down that this happened, and return how often it has."""
    with (DONE / name).open("a") as file:
        file.write(f"{time.time()}\n")
    return len((DONE / name).read_text().splitlines())


@app.task  # type: ignore[untyped-decorator]
def add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True, max_retries=5)  # type: ignore[untyped-decorator]
def flaky(self: Any, name: str, fail_times: int) -> int:
    attempts = note(name)
    if attempts <= fail_times:
        raise self.retry(exc=NotYet(attempts), countdown=0.2)
    return attempts


@app.task  # type: ignore[untyped-decorator]
def stamp(name: str) -> float:
    note(name)
    return time.time()


@app.task  # type: ignore[untyped-decorator]
def slow(name: str, seconds: float) -> int:
    attempts = note(name)
    time.sleep(seconds)
    return attempts


@app.task  # type: ignore[untyped-decorator]
def broken() -> None:
    raise RuntimeError("as it must")
