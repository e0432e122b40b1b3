"""FIFO queues with boto3: order within groups, one receiver of a group at a time, deduplication, repeated receives."""

from __future__ import annotations

from typing import Any

from tests.integration.aws.conftest import QueueFactory, bodies, delete, error_of, open_client, receive_all
from tests.integration.server import ServerProcess

FIFO = {"FifoQueue": "true"}


def send(sqs: Any, url: str, body: str, group: str, id: str | None = None, **options: Any) -> dict[str, Any]:
    answer = sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=id or f"{group}-{body}", **options
    )
    return dict(answer)


def test_a_group_is_blocked_by_what_is_not_deleted_and_others_are_not(sqs: Any, queue: QueueFactory) -> None:
    url = queue(**FIFO, VisibilityTimeout="60")
    for body in ("a1", "a2", "b1"):
        send(sqs, url, body, body[0])
    (first,) = receive_all(sqs, url, 1)
    assert first["Body"] == "a1"
    assert [m["Body"] for m in receive_all(sqs, url, 1)] == ["b1"]
    assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == []
    delete(sqs, url, first)
    assert [m["Body"] for m in receive_all(sqs, url, 1)] == ["a2"]


def test_a_message_that_comes_back_is_before_those_behind_it(sqs: Any, queue: QueueFactory) -> None:
    url = queue(**FIFO, VisibilityTimeout="60")
    for number in range(5):
        send(sqs, url, str(number), "g")
    (first,) = receive_all(sqs, url, 1)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
    assert bodies(got) == ["0", "1", "2", "3", "4"]


def test_what_was_sent_before_is_not_taken_again(sqs: Any, queue: QueueFactory) -> None:
    url = queue(**FIFO)
    first = send(sqs, url, "one", "g", "id")
    again = send(sqs, url, "two", "other", "id")
    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    later = send(sqs, url, "three", "g", "id-2")
    assert int(later["SequenceNumber"]) > int(first["SequenceNumber"])
    got = receive_all(sqs, url, 2, AttributeNames=["All"])
    assert [m["Body"] for m in got] == ["one", "three"]
    assert [m["Attributes"]["SequenceNumber"] for m in got] == [first["SequenceNumber"], later["SequenceNumber"]]
    assert got[0]["Attributes"]["MessageDeduplicationId"] == "id"
    assert got[0]["Attributes"]["MessageGroupId"] == "g"
    delete(sqs, url, *got)
    send(sqs, url, "four", "g", "id")  # deleted, and still within the five minutes
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)) == []


def test_deduplication_by_content_and_by_group(sqs: Any, queue: QueueFactory) -> None:
    url = queue(**FIFO, ContentBasedDeduplication="true", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")  # fmt: skip
    for group in ("g", "g", "h"):
        sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId=group)
    got = receive_all(sqs, url, 2, AttributeNames=["All"])
    assert sorted(m["Attributes"]["MessageGroupId"] for m in got) == ["g", "h"]
    assert bodies(sqs.receive_message(QueueUrl=url)) == []


def test_a_receive_is_repeated_by_its_id(sqs: Any, queue: QueueFactory) -> None:
    url = queue(**FIFO, VisibilityTimeout="60")
    send(sqs, url, "m", "g")
    first = sqs.receive_message(QueueUrl=url, ReceiveRequestAttemptId="try", WaitTimeSeconds=5)["Messages"]
    again = sqs.receive_message(QueueUrl=url, ReceiveRequestAttemptId="try")["Messages"]
    assert [m["MessageId"] for m in again] == [m["MessageId"] for m in first]
    assert bodies(sqs.receive_message(QueueUrl=url, ReceiveRequestAttemptId="another")) == []
    delete(sqs, url, again[0])
    assert bodies(sqs.receive_message(QueueUrl=url, ReceiveRequestAttemptId="try")) == []


def test_an_expired_handle_is_refused(sqs: Any, queue: QueueFactory) -> None:
    url = queue(**FIFO, VisibilityTimeout="0")
    send(sqs, url, "m", "g")
    (first,) = receive_all(sqs, url, 1)
    receive_all(sqs, url, 1, VisibilityTimeout=60)
    assert error_of(sqs.delete_message, QueueUrl=url, ReceiptHandle=first["ReceiptHandle"]) == (
        "InvalidParameterValue",
        400,
    )


def test_a_fifo_queue_wants_a_group_and_an_id_and_no_delay(sqs: Any, queue: QueueFactory, unique: Any) -> None:
    url = queue(**FIFO)
    assert error_of(sqs.send_message, QueueUrl=url, MessageBody="m")[0] == "MissingParameter"
    assert error_of(sqs.send_message, QueueUrl=url, MessageBody="m", MessageGroupId="g")[0] == "InvalidParameterValue"
    late = {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 5}
    assert error_of(sqs.send_message, QueueUrl=url, MessageBody="m", **late)[0] == "InvalidParameterValue"
    name = unique("q")
    assert error_of(sqs.create_queue, QueueName=name, Attributes=FIFO)[0] == "InvalidParameterValue"
    assert error_of(sqs.create_queue, QueueName=f"{name}.fifo")[0] == "InvalidParameterValue"


def test_order_and_deduplication_survive_kill_9(fresh_aws: ServerProcess) -> None:
    sqs = open_client(fresh_aws)
    url = sqs.create_queue(QueueName="k.fifo", Attributes={**FIFO, "VisibilityTimeout": "600"})["QueueUrl"]
    sent = [send(sqs, url, str(number), f"g{number % 2}", f"id-{number}") for number in range(20)]
    got = receive_all(sqs, url, 2)
    delete(sqs, url, got[0])
    fresh_aws.kill()
    fresh_aws.start()
    sqs = open_client(fresh_aws)
    for number in range(20):
        again = send(sqs, url, "again", f"g{number % 2}", f"id-{number}")
        assert again["MessageId"] == sent[number]["MessageId"]
    delete(sqs, url, got[1])  # the handle is still good
    deleted = {got[0]["Body"], got[1]["Body"]}
    left: list[str] = []
    while len(left) < 18:
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
        left += [m["Body"] for m in messages]
        delete(sqs, url, *messages)
    assert sorted(map(int, left)) == [n for n in range(20) if str(n) not in deleted]
    for group in (0, 1):
        numbers = [int(body) for body in left if int(body) % 2 == group]
        assert numbers == sorted(numbers)
    assert bodies(sqs.receive_message(QueueUrl=url)) == []


def test_delayed_messages_of_a_queue_keep_their_order_and_ids(fresh_aws: ServerProcess) -> None:
    sqs = open_client(fresh_aws)
    url = sqs.create_queue(QueueName="d.fifo", Attributes={**FIFO, "DelaySeconds": "3"})["QueueUrl"]
    for number in range(5):
        send(sqs, url, str(number), "g")
    fresh_aws.kill()
    fresh_aws.start()
    sqs = open_client(fresh_aws)
    send(sqs, url, "0", "g")  # known, though it waits
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
    found = bodies(got)
    delete(sqs, url, *got["Messages"])
    while len(found) < 5:
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        found += bodies(got)
        delete(sqs, url, *got["Messages"])
    assert found == ["0", "1", "2", "3", "4"]
