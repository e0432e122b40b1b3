"""The examples in examples/sqs do what their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.aws.conftest import endpoint, open_client, receive_all
from tests.integration.server import ServerProcess

EXAMPLES = Path(__file__).parents[3] / "examples" / "sqs"

# The examples have fixed names: one test at a time.
pytestmark = pytest.mark.xdist_group("sqs-examples")


def run(server: ServerProcess, *command: str) -> list[str]:
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint(server)}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=EXAMPLES,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_work_queue(fresh_aws: ServerProcess) -> None:
    run(fresh_aws, "work_new_task.py", "one", "fail: two", "three", "four")
    lines = run(fresh_aws, "work_worker.py", "3")
    assert {"done 'one'", "done 'three'", "done 'four'"} <= set(lines)
    sqs = open_client(fresh_aws)
    url = sqs.get_queue_url(QueueName="tasks")["QueueUrl"]
    for _ in range(3 - sum(line.startswith("failed") for line in lines)):
        receive_all(sqs, url, 1, VisibilityTimeout=0)
    dead = sqs.get_queue_url(QueueName="tasks-dead")["QueueUrl"]
    assert [message["Body"] for message in receive_all(sqs, dead, 1)] == ["fail: two"]


def test_orders_and_news(aws: ServerProcess) -> None:
    lines = run(aws, "fifo_orders.py")
    assert [line for line in lines if line.startswith("ann")] == ["ann 1", "ann 2"]
    assert [line for line in lines if line.startswith("bob")] == ["bob 1", "bob 2"]
    assert run(aws, "fan_out.py") == ["news-all ['flood', 'rain']", "news-alerts ['flood']"]
