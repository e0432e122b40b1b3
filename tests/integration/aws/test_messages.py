"""SQS with boto3: send, receive, delete, visibility, delay, batches; what a handle is good for."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any

import pytest

from tests.integration.aws.conftest import QueueFactory, bodies, delete, error_of, open_client, receive_all
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

OLD = "AWS.SimpleQueueService."


def test_a_message_comes_with_its_attributes_and_digests(sqs: Any, queue: QueueFactory) -> None:
    url = queue()
    attributes = {
        "text": {"DataType": "String", "StringValue": "grün & <gut>"},
        "number": {"DataType": "Number.float", "StringValue": "3.5"},
        "bytes": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="Körper\n", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == hashlib.md5("Körper\n".encode()).hexdigest()
    (got,) = receive_all(sqs, url, 1, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    assert got["Body"] == "Körper\n"
    assert got["MessageId"] == sent["MessageId"]
    assert got["MessageAttributes"] == attributes
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    assert got["Attributes"]["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert abs(int(got["Attributes"]["SentTimestamp"]) / 1000 - time.time()) < 60


def test_only_the_attributes_asked_for_come(sqs: Any, queue: QueueFactory) -> None:
    url = queue(VisibilityTimeout="0")
    attributes = {name: {"DataType": "String", "StringValue": "x"} for name in ("a.one", "a.two", "b")}
    sqs.send_message(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    for names, expected in (([], set()), (["a.*"], {"a.one", "a.two"}), (["b"], {"b"}), ([".*"], set(attributes))):
        (got,) = receive_all(sqs, url, 1, MessageAttributeNames=names)
        assert set(got.get("MessageAttributes", {})) == expected
    (got,) = receive_all(sqs, url, 1, AttributeNames=["SenderId"])
    assert set(got["Attributes"]) == {"SenderId"}


def test_a_message_that_is_not_deleted_comes_again_when_its_time_is_over(sqs: Any, queue: QueueFactory) -> None:
    url = queue(VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="again")
    (first,) = receive_all(sqs, url, 1)
    assert bodies(sqs.receive_message(QueueUrl=url)) == []
    (second,) = receive_all(sqs, url, 1, AttributeNames=["All"])
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    # The consumer that was too slow deletes with the handle of its own receive: 200, and the message stays.
    delete(sqs, url, first)
    (third,) = receive_all(sqs, url, 1, AttributeNames=["All"])
    assert third["Attributes"]["ApproximateReceiveCount"] == "3"
    delete(sqs, url, third)
    delete(sqs, url, third)  # a second time is no error
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_a_late_handle_deletes_what_nobody_has_received_since(sqs: Any, queue: QueueFactory) -> None:
    url = queue(VisibilityTimeout="0")
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    first = receive_all(sqs, url, 1)[0]
    delete(sqs, url, first)
    assert sorted(m["Body"] for m in receive_all(sqs, url, 2, VisibilityTimeout=30)) == ["b", "c"]


def test_visibility_is_changed_longer_shorter_and_to_nothing(sqs: Any, queue: QueueFactory) -> None:
    url = queue(VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="m")
    (got,) = receive_all(sqs, url, 1)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=60)
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)) == []
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = receive_all(sqs, url, 1)
    code = error_of(
        sqs.change_message_visibility, QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=5
    )
    assert code == (OLD + "MessageNotInflight", 400)
    handle = again["ReceiptHandle"]
    too_long = error_of(sqs.change_message_visibility, QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_201)
    assert too_long == ("InvalidParameterValue", 400)
    entries = [
        {"Id": "good", "ReceiptHandle": handle, "VisibilityTimeout": 100},
        {"Id": "bad", "ReceiptHandle": "made up", "VisibilityTimeout": 100},
    ]
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["good"]
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in answer["Failed"]] == [
        ("bad", "ReceiptHandleIsInvalid", True)
    ]
    delete(sqs, url, again)
    gone = error_of(sqs.change_message_visibility, QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=5)
    assert gone == ("InvalidParameterValue", 400)


def test_handles_that_are_forged_or_of_another_queue_are_refused(sqs: Any, queue: QueueFactory) -> None:
    one, other = queue(), queue()
    sqs.send_message(QueueUrl=one, MessageBody="m")
    handle = receive_all(sqs, one, 1)[0]["ReceiptHandle"]
    changed = handle[:40] + ("A" if handle[40] != "A" else "B") + handle[41:]
    for url, wrong in (
        (other, handle),
        (one, "x"),
        (one, changed),
        (one, handle[:-4]),
        (one, "é" * 20),
        (one, "A" * 9000),
    ):
        assert error_of(sqs.delete_message, QueueUrl=url, ReceiptHandle=wrong) == ("ReceiptHandleIsInvalid", 404)
    counts = sqs.get_queue_attributes(QueueUrl=one, AttributeNames=["ApproximateNumberOfMessagesNotVisible"])
    assert counts["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "1"


def test_a_long_poll_is_answered_when_a_message_comes(aws: ServerProcess, sqs: Any, queue: QueueFactory) -> None:
    url = queue()
    found: list[str] = []

    def wait() -> None:
        found.extend(bodies(open_client(aws).receive_message(QueueUrl=url, WaitTimeSeconds=20)))

    began = time.monotonic()
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    sqs.send_message(QueueUrl=url, MessageBody="at last")
    waiting.join(20)
    assert found == ["at last"]
    assert time.monotonic() - began < 15
    began = time.monotonic()
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)) == []
    assert time.monotonic() - began >= 0.9


def test_messages_are_delayed_by_the_queue_or_one_by_one(sqs: Any, queue: QueueFactory) -> None:
    url = queue(DelaySeconds="1")
    sqs.send_message(QueueUrl=url, MessageBody="late")
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    counted = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesDelayed"])[
        "Attributes"
    ]
    assert counted["ApproximateNumberOfMessagesDelayed"] == "1"
    assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == ["now"]
    assert [m["Body"] for m in receive_all(sqs, url, 1)] == ["late"]


def test_a_batch_answers_each_entry(sqs: Any, queue: QueueFactory) -> None:
    url = queue(MaximumMessageSize="1024")
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(8)]
    entries += [{"Id": "large", "MessageBody": "x" * 1025}, {"Id": "bad", "MessageBody": "\x00"}]
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == [str(number) for number in range(8)]
    assert {each["Id"]: each["Code"] for each in answer["Failed"]} == {
        "large": "InvalidParameterValue",
        "bad": "InvalidMessageContents",
    }
    got = receive_all(sqs, url, 8)
    assert sorted(message["Body"] for message in got) == [f"m{number}" for number in range(8)]
    deleted = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(got)]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[*deleted, {"Id": "forged", "ReceiptHandle": "x"}])
    assert len(answer["Successful"]) == 8
    assert answer["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([{"Id": str(n), "MessageBody": "m"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "m"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "m"}], "InvalidBatchEntryId"),
        ([{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)], "BatchRequestTooLong"),
    ],
)
def test_batches_that_are_refused_as_a_whole(sqs: Any, queue: QueueFactory, entries: list[Any], code: str) -> None:
    assert error_of(sqs.send_message_batch, QueueUrl=queue(), Entries=entries) == (OLD + code, 400)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"MessageBody": "x" * 1_048_577}, "InvalidParameterValue"),
        ({"MessageBody": "\x0b"}, "InvalidMessageContents"),
        ({"MessageBody": ""}, "InvalidParameterValue"),
        ({"MessageBody": "m", "DelaySeconds": 901}, "InvalidParameterValue"),
        ({"MessageBody": "m", "MessageDeduplicationId": "d"}, "InvalidParameterValue"),
        ({"MessageBody": "m", "MessageAttributes": {"a": {"DataType": "Number", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageBody": "m", "MessageAttributes": {"a": {"DataType": "Other", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageBody": "m", "MessageAttributes": {"aws.x": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageBody": "m", "MessageAttributes": {"a": {"DataType": "String", "StringValue": ""}}}, "InvalidParameterValue"),
        (
            {"MessageBody": "m", "MessageAttributes": {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}},
            "InvalidParameterValue",
        ),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(sqs: Any, queue: QueueFactory, parameters: dict[str, Any], code: str) -> None:
    assert error_of(sqs.send_message, QueueUrl=queue(), **parameters) == (code, 400)


def test_the_largest_message_goes_through(sqs: Any, queue: QueueFactory) -> None:
    url = queue()
    body = "ü" * (1 << 19)
    sqs.send_message(QueueUrl=url, MessageBody=body)
    assert receive_all(sqs, url, 1)[0]["Body"] == body


def test_a_receiver_that_goes_away_leaves_its_messages(aws: ServerProcess, sqs: Any, queue: QueueFactory) -> None:
    """A long poll whose client has gone does not take what comes later."""
    import http.client
    import json

    url = queue(VisibilityTimeout="300")
    gone = http.client.HTTPConnection("127.0.0.1", aws.port_of("aws"))
    headers = {"x-amz-target": "AmazonSQS.ReceiveMessage", "content-type": "application/x-amz-json-1.0"}
    gone.request("POST", "/", json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}), headers)
    time.sleep(0.2)
    gone.close()

    def taken() -> bool:
        sqs.send_message(QueueUrl=url, MessageBody="m")
        return bool(bodies(sqs.receive_message(QueueUrl=url, VisibilityTimeout=300)))

    wait_until(taken, 20, "a message that the one who went did not take")


def test_resource_objects_do_the_same(aws: ServerProcess, queue: QueueFactory) -> None:
    import boto3

    from tests.integration.aws.conftest import CREDENTIALS, endpoint

    resource = boto3.resource("sqs", endpoint_url=endpoint(aws), **CREDENTIALS)
    made = resource.Queue(queue())
    made.send_message(MessageBody="through an object")
    (message,) = made.receive_messages(WaitTimeSeconds=5)
    assert message.body == "through an object"
    message.change_visibility(VisibilityTimeout=60)
    message.delete()
    assert resource.get_queue_by_name(QueueName=made.url.rpartition("/")[2]).url == made.url
    assert made.attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
