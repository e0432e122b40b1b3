"""A Celery application on SQS for the tests: `celery -A tests.integration.aws.celery_app worker`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("tests", broker=f"sqs://any:any@{os.environ['TEST_ENDPOINT'].removeprefix('http://')}")
app.conf.update(
    task_default_queue=os.environ["TEST_QUEUE"],
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "region": "eu-west-1",
        "is_secure": False,
        "visibility_timeout": 30,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
)
DONE = Path(os.environ["TEST_DIRECTORY"])


@app.task  # type: ignore[untyped-decorator]
def note(name: str) -> None:
    (DONE / name).write_text("done")


@app.task(bind=True, max_retries=3, default_retry_delay=1)  # type: ignore[untyped-decorator]
def flaky(self: Any, name: str) -> None:
    if self.request.retries < 1:
        raise self.retry()
    (DONE / name).write_text("done at last")
