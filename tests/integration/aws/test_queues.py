"""SQS with boto3: queues, attributes, tags, policies, dead letters and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.aws.conftest import QueueFactory, bodies, delete, error_of, open_client, receive_all
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

OLD = "AWS.SimpleQueueService."


def arn_of(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def redrive(sqs: Any, target: str, count: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn_of(sqs, target), "maxReceiveCount": count})


def test_creating_a_queue_again_is_the_same_queue_unless_it_differs(sqs: Any, unique: Callable[[str], str]) -> None:
    name = unique("q")
    first = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "10"}, tags={"team": "a"})["QueueUrl"]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == first
    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "10"})["QueueUrl"] == first
    other = error_of(sqs.create_queue, QueueName=name, Attributes={"VisibilityTimeout": "11"})
    assert other == ("QueueAlreadyExists", 400)
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == first
    assert sqs.list_queue_tags(QueueUrl=first)["Tags"] == {"team": "a"}
    sqs.tag_queue(QueueUrl=first, Tags={"cost": "1"})
    sqs.untag_queue(QueueUrl=first, TagKeys=["team"])
    assert sqs.list_queue_tags(QueueUrl=first)["Tags"] == {"cost": "1"}
    sqs.delete_queue(QueueUrl=first)
    assert error_of(sqs.get_queue_url, QueueName=name) == (OLD + "NonExistentQueue", 400)
    assert error_of(sqs.send_message, QueueUrl=first, MessageBody="m") == (OLD + "NonExistentQueue", 400)
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == first
    sqs.delete_queue(QueueUrl=first)


def test_queues_are_listed_in_pages(sqs: Any, queue: QueueFactory, unique: Callable[[str], str]) -> None:
    prefix = unique("page")
    urls = [queue(f"{prefix}-{number}") for number in range(5)]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == urls
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2, **token)
        found += page["QueueUrls"]
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert found == urls
    assert error_of(sqs.list_queues, NextToken="?")[0] == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("name", "attributes", "code"),
    [
        ("bad name", {}, "InvalidParameterValue"),
        ("x" * 81, {}, "InvalidParameterValue"),
        ("q", {"Nonsense": "1"}, "InvalidAttributeName"),
        ("q", {"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ("q", {"VisibilityTimeout": "soon"}, "InvalidAttributeValue"),
        ("q", {"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ("q", {"MessageRetentionPeriod": "1209601"}, "InvalidAttributeValue"),
        ("q", {"MaximumMessageSize": "1048577"}, "InvalidAttributeValue"),
        ("q", {"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"),
        ("q", {"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ("q", {"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ("q", {"RedrivePolicy": "{"}, "InvalidParameterValue"),
        ("q", {"RedrivePolicy": json.dumps({"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:0:nope", "maxReceiveCount": 1})}, "InvalidParameterValue"),
        ("q", {"RedrivePolicy": json.dumps({"deadLetterTargetArn": "x", "maxReceiveCount": 1})}, "InvalidParameterValue"),
    ],
)  # fmt: skip
def test_queues_that_cannot_be(sqs: Any, name: str, attributes: dict[str, str], code: str) -> None:
    assert error_of(sqs.create_queue, QueueName=name, Attributes=attributes) == (code, 400)


def test_attributes_are_changed_and_take_effect(fresh_aws: ServerProcess) -> None:
    sqs = open_client(fresh_aws)
    url = sqs.create_queue(QueueName="changing")["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "0", "MaximumMessageSize": "2000"})
    sqs.send_message(QueueUrl=url, MessageBody="m")
    for _ in range(2):
        assert [m["Body"] for m in receive_all(sqs, url, 1)] == ["m"]
    assert error_of(sqs.send_message, QueueUrl=url, MessageBody="x" * 2001)[0] == "InvalidParameterValue"
    assert (
        error_of(sqs.set_queue_attributes, QueueUrl=url, Attributes={"FifoQueue": "true"})[0] == "InvalidAttributeName"
    )
    assert error_of(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["No"])[0] == "InvalidAttributeName"
    before = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    fresh_aws.kill()
    fresh_aws.start()
    assert open_client(fresh_aws).get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"] == before


def test_a_message_that_fails_too_often_goes_to_the_dead_letters_and_back(sqs: Any, queue: QueueFactory) -> None:
    dead = queue()
    work = queue(VisibilityTimeout="0")
    sqs.set_queue_attributes(QueueUrl=work, Attributes={"RedrivePolicy": redrive(sqs, dead, 2)})
    sent = sqs.send_message(
        QueueUrl=work, MessageBody="poison", MessageAttributes={"a": {"DataType": "Number", "StringValue": "7"}}
    )
    for _ in range(2):
        receive_all(sqs, work, 1)
    (letter,) = receive_all(sqs, dead, 1, AttributeNames=["All"], MessageAttributeNames=["All"], VisibilityTimeout=0)
    assert letter["Body"] == "poison"
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["MessageAttributes"]["a"] == {"DataType": "Number", "StringValue": "7"}
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, work)
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [work]

    source = arn_of(sqs, dead)
    wait_until(lambda: counts(sqs, dead) == ("1", "0"), 10, "the letter to be visible")
    sqs.set_queue_attributes(QueueUrl=work, Attributes={"VisibilityTimeout": "30"})
    sqs.start_message_move_task(SourceArn=source)
    (again,) = receive_all(sqs, work, 1, AttributeNames=["All"])
    assert again["MessageId"] == sent["MessageId"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "1"

    def finished() -> bool:
        (task,) = sqs.list_message_move_tasks(SourceArn=source)["Results"]
        return bool(task["Status"] == "COMPLETED" and task["ApproximateNumberOfMessagesMoved"] == 1)

    wait_until(finished, 10, "the end of the task")
    sqs.set_queue_attributes(QueueUrl=work, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in sqs.get_queue_attributes(QueueUrl=work, AttributeNames=["All"])["Attributes"]
    assert error_of(sqs.start_message_move_task, SourceArn=source)[0] == "InvalidParameterValue"


def counts(sqs: Any, url: str) -> tuple[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found["ApproximateNumberOfMessages"], found["ApproximateNumberOfMessagesNotVisible"]


def test_a_move_can_be_slow_to_another_queue_and_cancelled(sqs: Any, queue: QueueFactory) -> None:
    dead, other = queue(), queue()
    queue(RedrivePolicy=redrive(sqs, dead))
    for first in range(0, 30, 10):
        entries = [{"Id": str(n), "MessageBody": str(first + n)} for n in range(10)]
        sqs.send_message_batch(QueueUrl=dead, Entries=entries)
    source = arn_of(sqs, dead)
    started = sqs.start_message_move_task(
        SourceArn=source, DestinationArn=arn_of(sqs, other), MaxNumberOfMessagesPerSecond=5
    )
    assert error_of(sqs.start_message_move_task, SourceArn=source)[0] == "InvalidParameterValue"
    receive_all(sqs, other, 1)
    moved = sqs.cancel_message_move_task(TaskHandle=started["TaskHandle"])["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 30
    (task,) = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    assert task["Status"] == "CANCELLED"
    assert int(counts(sqs, dead)[0]) == 30 - moved
    assert error_of(sqs.cancel_message_move_task, TaskHandle="x")[0] == "InvalidParameterValue"
    assert error_of(sqs.list_message_move_tasks, SourceArn="arn:aws:sqs:eu-west-1:0:no") == (
        "ResourceNotFoundException",
        404,
    )


def test_who_may_use_a_dead_letter_queue_is_its_own_to_say(sqs: Any, queue: QueueFactory) -> None:
    work = queue()
    closed = queue(RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"}))
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of(sqs, work)]}
    opened = queue(RedriveAllowPolicy=json.dumps(allowed))
    refused = error_of(sqs.set_queue_attributes, QueueUrl=work, Attributes={"RedrivePolicy": redrive(sqs, closed)})
    assert refused == ("InvalidParameterValue", 400)
    sqs.set_queue_attributes(QueueUrl=work, Attributes={"RedrivePolicy": redrive(sqs, opened)})


def test_a_purge_leaves_what_is_in_flight(sqs: Any, queue: QueueFactory) -> None:
    url = queue()
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    (held,) = receive_all(sqs, url, 1)
    sqs.purge_queue(QueueUrl=url)
    assert counts(sqs, url) == ("0", "1")
    delete(sqs, url, held)
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)) == []


def test_permissions_are_kept_as_a_policy(sqs: Any, queue: QueueFactory) -> None:
    url = queue()
    sqs.add_permission(QueueUrl=url, Label="let", AWSAccountIds=["123456789012"], Actions=["SendMessage"])
    policy = json.loads(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"])
    assert policy["Statement"][0]["Action"] == ["SQS:SendMessage"]
    again = {"Label": "let", "AWSAccountIds": ["1"], "Actions": ["*"]}
    assert error_of(sqs.add_permission, QueueUrl=url, **again)[0] == "InvalidParameterValue"
    sqs.remove_permission(QueueUrl=url, Label="let")
    assert error_of(sqs.remove_permission, QueueUrl=url, Label="let")[0] == "InvalidParameterValue"
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
