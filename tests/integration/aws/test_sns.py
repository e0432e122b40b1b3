"""SNS with boto3: topics, fan-out to queues, filter policies, HTTP endpoints with confirmation and retries."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest

from tests.integration.aws.conftest import (
    CREDENTIALS,
    QueueFactory,
    bodies,
    endpoint,
    error_of,
    open_client,
    receive_all,
)
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until


def arn_of(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


@pytest.fixture
def topic(sns: Any, unique: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(**attributes: str) -> str:
        suffix = ".fifo" if attributes.get("FifoTopic") == "true" else ""
        made.append(sns.create_topic(Name=unique("t") + suffix, Attributes=attributes)["TopicArn"])
        return made[-1]

    yield make
    for arn in made:
        sns.delete_topic(TopicArn=arn)


def subscribe(sns: Any, sqs: Any, topic: str, queue: str, **attributes: Any) -> str:
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in attributes.items()}
    answer = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn_of(sqs, queue), Attributes=given)
    return str(answer["SubscriptionArn"])


def test_a_publication_reaches_every_queue_raw_or_wrapped(
    sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str]
) -> None:
    arn, wrapped, raw = topic(), queue(), queue()
    subscribe(sns, sqs, arn, wrapped)
    subscribe(sns, sqs, arn, raw, RawMessageDelivery="true")
    attributes = {"kind": {"DataType": "String", "StringValue": "x"}, "n": {"DataType": "Number", "StringValue": "5"}}
    sent = sns.publish(TopicArn=arn, Message="hällo", Subject="news", MessageAttributes=attributes)
    document = json.loads(receive_all(sqs, wrapped, 1)[0]["Body"])
    assert document["Type"] == "Notification"
    assert document["MessageId"] == sent["MessageId"]
    assert (document["Message"], document["Subject"], document["TopicArn"]) == ("hällo", "news", arn)
    assert document["MessageAttributes"]["kind"] == {"Type": "String", "Value": "x"}
    (got,) = receive_all(sqs, raw, 1, MessageAttributeNames=["All"])
    assert got["Body"] == "hällo"
    assert got["MessageAttributes"] == attributes


def test_topics_are_described_tagged_listed_and_deleted(sns: Any, topic: Callable[..., str]) -> None:
    arn = topic(DisplayName="shown")
    name = arn.rpartition(":")[2]
    assert sns.create_topic(Name=name)["TopicArn"] == arn
    assert error_of(sns.create_topic, Name=name, Attributes={"DisplayName": "other"}) == ("InvalidParameter", 400)
    sns.set_topic_attributes(TopicArn=arn, AttributeName="DisplayName", AttributeValue="changed")
    assert sns.get_topic_attributes(TopicArn=arn)["Attributes"]["DisplayName"] == "changed"
    sns.tag_resource(ResourceArn=arn, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    sns.untag_resource(ResourceArn=arn, TagKeys=["a"])
    assert sns.list_tags_for_resource(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    found = [each["TopicArn"] for page in sns.get_paginator("list_topics").paginate() for each in page["Topics"]]
    assert arn in found
    sns.add_permission(TopicArn=arn, Label="l", AWSAccountId=["123456789012"], ActionName=["Publish"])
    assert json.loads(sns.get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"])["Statement"][0]["Sid"] == "l"
    sns.remove_permission(TopicArn=arn, Label="l")
    sns.delete_topic(TopicArn=arn)
    sns.delete_topic(TopicArn=arn)
    assert error_of(sns.publish, TopicArn=arn, Message="m") == ("NotFound", 404)
    assert error_of(sns.create_topic, Name="bad name") == ("InvalidParameter", 400)
    assert error_of(sns.create_topic, Name="x.fifo") == ("InvalidParameter", 400)


def test_subscriptions_are_listed_changed_and_ended(
    sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str]
) -> None:
    arn, url = topic(), queue()
    made = subscribe(sns, sqs, arn, url)
    assert subscribe(sns, sqs, arn, url) == made
    assert error_of(sns.subscribe, TopicArn=arn, Protocol="sqs", Endpoint=arn_of(sqs, url), Attributes={"RawMessageDelivery": "true"})[0] == "InvalidParameter"  # fmt: skip
    (listed,) = sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
    assert (listed["SubscriptionArn"], listed["Protocol"]) == (made, "sqs")
    pages = sns.get_paginator("list_subscriptions").paginate()
    assert made in [each["SubscriptionArn"] for page in pages for each in page["Subscriptions"]]
    sns.set_subscription_attributes(SubscriptionArn=made, AttributeName="RawMessageDelivery", AttributeValue="true")
    assert sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]["RawMessageDelivery"] == "true"
    assert sns.get_topic_attributes(TopicArn=arn)["Attributes"]["SubscriptionsConfirmed"] == "1"
    sns.unsubscribe(SubscriptionArn=made)
    sns.unsubscribe(SubscriptionArn=made)
    sns.publish(TopicArn=arn, Message="to nobody")
    assert bodies(sqs.receive_message(QueueUrl=url)) == []
    assert error_of(sns.get_subscription_attributes, SubscriptionArn=made) == ("NotFound", 404)


@pytest.mark.parametrize(
    "protocol", ["email", "email-json", "sms", "application", "lambda", "firehose", "carrier-pigeon"]
)
def test_what_cannot_be_delivered_to_is_refused(sns: Any, topic: Callable[..., str], protocol: str) -> None:
    assert error_of(sns.subscribe, TopicArn=topic(), Protocol=protocol, Endpoint="x@example.org") == (
        "InvalidParameter",
        400,
    )


def test_text_messages_are_refused(sns: Any) -> None:
    assert error_of(sns.publish, PhoneNumber="+43123456", Message="m") == ("InvalidParameter", 400)


def test_each_subscription_gets_what_its_policy_matches(
    sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str]
) -> None:
    arn = topic()
    policies: dict[str, dict[str, Any]] = {
        "exact": {"FilterPolicy": {"kind": ["order", "refund"]}},
        "range": {"FilterPolicy": {"price": [{"numeric": [">=", 10, "<", 100]}]}},
        "not": {"FilterPolicy": {"kind": [{"anything-but": ["order"]}]}},
        "body": {"FilterPolicy": {"order": {"region": [{"prefix": "eu-"}]}}, "FilterPolicyScope": "MessageBody"},
        "all": {},
    }
    urls = {name: queue() for name in policies}
    for name, attributes in policies.items():
        subscribe(sns, sqs, arn, urls[name], RawMessageDelivery="true", **attributes)

    def publish(body: str, **attributes: tuple[str, str]) -> None:
        given = {name: {"DataType": kind, "StringValue": value} for name, (kind, value) in attributes.items()}
        sns.publish(TopicArn=arn, Message=body, MessageAttributes=given)

    publish('{"order": {"region": "eu-west"}}', kind=("String", "order"), price=("Number", "50"))
    publish('{"order": {"region": "us"}}', kind=("String", "other"), price=("Number", "100"))
    publish("no json", kind=("String.Array", '["refund", "x"]'))
    publish("nothing")
    expected = {"exact": [0, 2], "range": [0], "not": [1, 2], "body": [0], "all": [0, 1, 2, 3]}
    sent = ['{"order": {"region": "eu-west"}}', '{"order": {"region": "us"}}', "no json", "nothing"]
    for name, numbers in expected.items():
        assert [m["Body"] for m in receive_all(sqs, urls[name], len(numbers))] == [sent[n] for n in numbers], name
        assert bodies(sqs.receive_message(QueueUrl=urls[name])) == [], name


@pytest.mark.parametrize(
    "policy",
    ["{", "[]", '{"a": "b"}', '{"a": []}', '{"a": [{"no-such": 1}]}', '{"a": [{"numeric": ["<"]}]}', '{"a": [{"cidr": "x"}]}',
     json.dumps({f"k{n}": ["v"] for n in range(6)}), json.dumps({"a": list(range(151))})],
)  # fmt: skip
def test_policies_that_mean_nothing_are_refused(
    sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str], policy: str
) -> None:
    made = subscribe(sns, sqs, topic(), queue())
    refused = error_of(
        sns.set_subscription_attributes, SubscriptionArn=made, AttributeName="FilterPolicy", AttributeValue=policy
    )
    assert refused == ("InvalidParameter", 400)


def test_a_batch_and_a_message_for_each_protocol(
    sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str]
) -> None:
    arn, url = topic(), queue()
    subscribe(sns, sqs, arn, url, RawMessageDelivery="true")
    entries = [{"Id": "a", "Message": "one"}, {"Id": "b", "Message": "x", "Subject": "x" * 101}]
    answer = sns.publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["a"]
    assert [(each["Id"], each["Code"]) for each in answer["Failed"]] == [("b", "InvalidParameter")]
    structured = json.dumps({"default": "for all", "sqs": "for queues"})
    sns.publish(TopicArn=arn, Message=structured, MessageStructure="json")
    assert [m["Body"] for m in receive_all(sqs, url, 2)] == ["one", "for queues"]
    assert error_of(sns.publish, TopicArn=arn, Message='{"sqs": "x"}', MessageStructure="json")[0] == "InvalidParameter"
    many = [{"Id": str(n), "Message": "m"} for n in range(11)]
    assert (
        error_of(sns.publish_batch, TopicArn=arn, PublishBatchRequestEntries=many)[0] == "TooManyEntriesInBatchRequest"
    )
    twice = [{"Id": "a", "Message": "m"}] * 2
    assert error_of(sns.publish_batch, TopicArn=arn, PublishBatchRequestEntries=twice)[0] == "BatchEntryIdsNotDistinct"
    assert error_of(sns.publish, TopicArn=arn, Message="x" * 262_145)[0] == "InvalidParameter"


def test_a_fifo_topic_keeps_order_and_takes_nothing_twice(
    sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str]
) -> None:
    arn = topic(FifoTopic="true", ContentBasedDeduplication="true")
    url = queue(FifoQueue="true")
    subscribe(sns, sqs, arn, url, RawMessageDelivery="true")
    for text in ("1", "2", "2", "3"):
        answer = sns.publish(TopicArn=arn, Message=text, MessageGroupId="g")
        assert len(answer["SequenceNumber"]) == 20
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5, AttributeNames=["All"])
    assert bodies(got) == ["1", "2", "3"]
    assert got["Messages"][0]["Attributes"]["MessageGroupId"] == "g"
    assert error_of(sns.publish, TopicArn=arn, Message="m")[0] == "InvalidParameter"


def test_a_queue_that_is_gone_or_full_does_not_hold_up_the_others(
    aws: ServerProcess, sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    import pika

    arn, good, dead = topic(), queue(), queue()
    gone = queue()
    letters = {"RedrivePolicy": {"deadLetterTargetArn": arn_of(sqs, dead)}, "RawMessageDelivery": "true"}
    subscribe(sns, sqs, arn, gone, **letters)
    subscribe(sns, sqs, arn, good, RawMessageDelivery="true")
    sqs.delete_queue(QueueUrl=gone)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", aws.port_of("amqp")))
    full = unique("full")
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
    connection.channel().queue_declare(full, durable=True, arguments=arguments)
    subscribe(sns, sqs, arn, sqs.get_queue_url(QueueName=full)["QueueUrl"], **letters)
    assert error_of(sqs.send_message, QueueUrl=sqs.get_queue_url(QueueName=full)["QueueUrl"], MessageBody="m") == (
        "OverLimit",
        403,
    )
    sns.publish(TopicArn=arn, Message="through")
    assert [m["Body"] for m in receive_all(sqs, good, 1)] == ["through"]
    assert [m["Body"] for m in receive_all(sqs, dead, 2)] == ["through", "through"]
    connection.channel().queue_delete(full)
    connection.close()


class Endpoint:
    """An HTTP endpoint that notes what it is sent and answers with the statuses that it is given, then 200."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], str]] = []
        self.statuses: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                outer.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(outer.statuses.pop(0) if outer.statuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?a=b"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_an_http_endpoint_confirms_and_is_tried_again(
    aws: ServerProcess, sns: Any, sqs: Any, queue: QueueFactory, topic: Callable[..., str], hook: Endpoint
) -> None:
    arn, dead = topic(), queue()
    quick = {"healthyRetryPolicy": {"numRetries": 2, "minDelayTarget": 0, "maxDelayTarget": 0}}
    attributes = {
        "DeliveryPolicy": json.dumps(quick),
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn_of(sqs, dead)}),
    }
    pending = sns.subscribe(TopicArn=arn, Protocol="http", Endpoint=hook.url, Attributes=attributes)
    assert pending["SubscriptionArn"] == "pending confirmation"
    wait_until(lambda: len(hook.got) == 1, 10, "the request to confirm")
    headers, body = hook.got.pop()
    assert headers["x-amz-sns-message-type"] == "SubscriptionConfirmation"
    asked = json.loads(body)
    sns.publish(TopicArn=arn, Message="too early")
    assert error_of(sns.confirm_subscription, TopicArn=arn, Token="wrong")[0] == "InvalidParameter"
    with urllib.request.urlopen(asked["SubscribeURL"]) as answer:
        assert b"ConfirmSubscriptionResult" in answer.read()
    hook.statuses = [500, 503]
    sns.publish(TopicArn=arn, Message="third time lucky")
    wait_until(lambda: len(hook.got) == 3, 20, "three tries")
    assert {json.loads(body)["Message"] for _, body in hook.got} == {"third time lucky"}
    assert hook.got[0][0]["x-amz-sns-topic-arn"] == arn
    hook.statuses = [500, 500, 500]
    sns.publish(TopicArn=arn, Message="in vain")
    assert json.loads(receive_all(sqs, dead, 1)[0]["Body"])["Message"] == "in vain"
    hook.statuses = [403]
    sns.publish(TopicArn=arn, Message="refused for good")
    assert json.loads(receive_all(sqs, dead, 1)[0]["Body"])["Message"] == "refused for good"
    assert len(hook.got) == 7
    wrong = error_of(sns.subscribe, TopicArn=arn, Protocol="https", Endpoint=hook.url)
    assert wrong == ("InvalidParameter", 400)


def test_topics_subscriptions_and_what_must_be_posted_survive_kill_9(fresh_aws: ServerProcess, hook: Endpoint) -> None:
    sns, sqs = open_client(fresh_aws, "sns"), open_client(fresh_aws)
    arn = sns.create_topic(Name="kept", Tags=[{"Key": "a", "Value": "b"}])["TopicArn"]
    url = sqs.create_queue(QueueName="kept")["QueueUrl"]
    subscribe(sns, sqs, arn, url, FilterPolicy={"k": ["v"]}, RawMessageDelivery="true")
    patient = json.dumps({"healthyRetryPolicy": {"numRetries": 50, "minDelayTarget": 1, "maxDelayTarget": 1}})
    hook.statuses = [200]
    sns.subscribe(TopicArn=arn, Protocol="http", Endpoint=hook.url, Attributes={"DeliveryPolicy": patient})
    wait_until(lambda: len(hook.got) == 1, 10, "the request to confirm")
    sns.confirm_subscription(TopicArn=arn, Token=json.loads(hook.got.pop()[1])["Token"])
    hook.statuses = [503] * 1000
    sns.publish(TopicArn=arn, Message="m", MessageAttributes={"k": {"DataType": "String", "StringValue": "v"}})
    fresh_aws.kill()
    fresh_aws.start()
    sns, sqs = open_client(fresh_aws, "sns"), open_client(fresh_aws)
    hook.statuses = []
    wait_until(lambda: any('"Message": "m"' in body for _, body in hook.got), 30, "the notification after the restart")
    assert [m["Body"] for m in receive_all(sqs, url, 1)] == ["m"]
    sns.publish(TopicArn=arn, Message="other")
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)) == []
    assert sns.list_tags_for_resource(ResourceArn=arn)["Tags"] == [{"Key": "a", "Value": "b"}]


def test_resource_objects_do_the_same(
    aws: ServerProcess, sqs: Any, queue: QueueFactory, unique: Callable[[str], str]
) -> None:
    resource = boto3.resource("sns", endpoint_url=endpoint(aws), **CREDENTIALS)
    made = resource.create_topic(Name=unique("t"))
    url = queue()
    subscription = made.subscribe(Protocol="sqs", Endpoint=arn_of(sqs, url))
    made.publish(Message="through an object")
    assert json.loads(receive_all(sqs, url, 1)[0]["Body"])["Message"] == "through an object"
    assert subscription.attributes["Protocol"] == "sqs"
    subscription.delete()
    made.delete()
