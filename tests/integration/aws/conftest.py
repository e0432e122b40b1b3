"""Fixtures for SQS and SNS: boto3 clients of a broker that all tests of a worker share, and queues of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from botocore.config import Config

from tests.integration.server import ServerProcess

CREDENTIALS = {"aws_access_key_id": "anything", "aws_secret_access_key": "goes", "region_name": "eu-west-1"}


def open_client(server: ServerProcess, service: str = "sqs", **options: Any) -> Any:
    """A boto3 client that does not repeat what failed: a test sees each answer."""
    config = Config(retries={"max_attempts": 0}, max_pool_connections=50, read_timeout=60)
    return boto3.client(service, endpoint_url=endpoint(server), **{**CREDENTIALS, "config": config, **options})


def endpoint(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port_of('aws')}"


class QueueFactory(Protocol):
    def __call__(self, name: str = ..., **attributes: str) -> str: ...


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("aws")).start()
    try:
        yield server
        server.stop()
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


@pytest.fixture
def fresh_aws(tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker of the test's own, that it may kill and start again."""
    server = ServerProcess(tmp_path / "aws").start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def sqs(aws: ServerProcess) -> Any:
    return open_client(aws)


@pytest.fixture(scope="session")
def sns(aws: ServerProcess) -> Any:
    return open_client(aws, "sns")


@pytest.fixture
def queue(sqs: Any, unique: Callable[[str], str]) -> Iterator[QueueFactory]:
    """Make queues: `queue(VisibilityTimeout="1")`, `queue("x.fifo", …)`; they are deleted after the test."""
    made: list[str] = []

    def make(name: str = "", **attributes: str) -> str:
        suffix = ".fifo" if attributes.get("FifoQueue") == "true" else ""
        url = str(sqs.create_queue(QueueName=(name or unique("q")) + suffix, Attributes=attributes)["QueueUrl"])
        made.append(url)
        return url

    yield make
    for url in made:
        try:
            sqs.delete_queue(QueueUrl=url)
        except sqs.exceptions.QueueDoesNotExist:
            pass


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in answer.get("Messages", [])]


def receive_all(sqs: Any, url: str, count: int, **options: Any) -> list[dict[str, Any]]:
    """Receive until so many messages have come; each receive waits a little."""
    found: list[dict[str, Any]] = []
    for _ in range(10 + count):
        if len(found) >= count:
            break
        most = min(10, count - len(found))
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=most, WaitTimeSeconds=5, **options)
        found += answer.get("Messages", [])
    assert len(found) == count, f"{len(found)} of {count} messages came"
    return found


def delete(sqs: Any, url: str, *messages: dict[str, Any]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def error_of(call: Callable[..., Any], **parameters: Any) -> tuple[str, int]:
    """The code and the HTTP status of a call's refusal."""
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call(**parameters)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]
