"""`trunkline sns`: topics, create, delete, subscribe, unsubscribe, subscriptions, publish."""

from __future__ import annotations

from typing import cast

import click

from trunkline.cli.aws_options import aws_options
from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option, parse_pairs
from trunkline.cli.output import Json, print_json, print_table
from trunkline.client.aws import AwsClient


@click.group
def sns() -> None:
    """Topics as SNS has them: create, subscribe, publish."""


def _topics(client: AwsClient) -> list[str]:
    found: list[str] = []
    token: dict[str, object] = {}
    while True:
        page = client.sns("ListTopics", **token)
        found += [each["TopicArn"] for each in cast("list[dict[str, str]]", page["Topics"])]
        if "NextToken" not in page:
            return found
        token = {"NextToken": page["NextToken"]}


def _arn(client: AwsClient, name: str) -> str:
    if name.startswith("arn:"):
        return name
    for arn in _topics(client):
        if arn.rpartition(":")[2] == name:
            return arn
    raise CommandError(f"there is no topic {name!r}", f"`trunkline sns create {name}` makes it")


@sns.command
@json_option
@aws_options
def topics(client: AwsClient, as_json: bool) -> None:
    """List topics and how many subscriptions they have.

    \b
    trunkline sns topics
    """
    rows = []
    for arn in _topics(client):
        found = cast("dict[str, str]", client.sns("GetTopicAttributes", TopicArn=arn)["Attributes"])
        rows.append(
            (arn.rpartition(":")[2], int(found["SubscriptionsConfirmed"]), int(found["SubscriptionsPending"]), arn)
        )
    columns = ("topic", "confirmed", "pending", "arn")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, empty="there are no topics yet; `trunkline sns create NAME` makes one")


@sns.command
@click.argument("name")
@click.option("-a", "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="Attribute; may be repeated.")  # fmt: skip
@aws_options
def create(client: AwsClient, name: str, attributes: list[tuple[str, str]]) -> None:
    """Create a topic. A name that ends with .fifo makes a FIFO topic.

    \b
    trunkline sns create news
    """
    given = dict(attributes)
    if name.endswith(".fifo"):
        given.setdefault("FifoTopic", "true")
    click.echo(client.sns("CreateTopic", Name=name, Attributes=given)["TopicArn"])


@sns.command
@click.argument("name")
@aws_options
def delete(client: AwsClient, name: str) -> None:
    """Delete a topic with its subscriptions.

    \b
    trunkline sns delete news
    """
    client.sns("DeleteTopic", TopicArn=_arn(client, name))


@sns.command
@click.argument("topic")
@click.argument("endpoint")
@click.option("--raw", is_flag=True, help="Deliver messages as they were published, not wrapped in JSON.")
@click.option("--filter", "policy", metavar="JSON", help="Filter policy.")
@click.option("--filter-body", is_flag=True, help="The policy is about the body, not the attributes.")
@aws_options
def subscribe(client: AwsClient, topic: str, endpoint: str, raw: bool, policy: str | None, filter_body: bool) -> None:
    """Subscribe a queue, by its name, or an http(s) URL to a topic.

    \b
    trunkline sns subscribe news inbox --raw
    trunkline sns subscribe news inbox --filter '{"kind": ["alert"]}'
    trunkline sns subscribe news https://example.org/hook
    """
    protocol = endpoint.partition("://")[0] if "://" in endpoint else "sqs"
    if protocol == "sqs" and not endpoint.startswith("arn:"):
        url = client.sqs("GetQueueUrl", QueueName=endpoint)["QueueUrl"]
        found = client.sqs("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        endpoint = cast("dict[str, str]", found)["QueueArn"]
    attributes: dict[str, str] = {"RawMessageDelivery": "true"} if raw else {}
    if policy is not None:
        attributes["FilterPolicyScope"] = "MessageBody" if filter_body else "MessageAttributes"
        attributes["FilterPolicy"] = policy
    made = client.sns(
        "Subscribe",
        TopicArn=_arn(client, topic),
        Protocol=protocol,
        Endpoint=endpoint,
        Attributes=attributes,
        ReturnSubscriptionArn="true",
    )
    click.echo(made["SubscriptionArn"])


@sns.command
@click.argument("arn")
@aws_options
def unsubscribe(client: AwsClient, arn: str) -> None:
    """End a subscription.

    \b
    trunkline sns unsubscribe arn:aws:sns:us-east-1:000000000000:news:0b1c…
    """
    client.sns("Unsubscribe", SubscriptionArn=arn)


@sns.command
@click.argument("topic", required=False)
@json_option
@aws_options
def subscriptions(client: AwsClient, topic: str | None, as_json: bool) -> None:
    """List subscriptions, of one topic or of all.

    \b
    trunkline sns subscriptions news
    """
    given: dict[str, object] = {} if topic is None else {"TopicArn": _arn(client, topic)}
    operation = "ListSubscriptions" if topic is None else "ListSubscriptionsByTopic"
    found: list[dict[str, str]] = []
    while True:
        page = client.sns(operation, **given)
        found += cast("list[dict[str, str]]", page["Subscriptions"])
        if "NextToken" not in page:
            break
        given["NextToken"] = page["NextToken"]
    if as_json:
        print_json(cast(Json, found))
        return
    rows = [(each["TopicArn"].rpartition(":")[2], each["Protocol"], each["Endpoint"], each["SubscriptionArn"]) for each in found]  # fmt: skip
    print_table(("topic", "protocol", "endpoint", "subscription"), rows, empty="there are no subscriptions")


@sns.command
@click.argument("topic")
@click.argument("message")
@click.option("--subject", help="Subject of the notification.")
@click.option("--group", help="Message group, of a FIFO topic.")
@click.option("--deduplication-id", help="Deduplication id, of a FIFO topic.")
@click.option("-a", "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="Message attribute; may be repeated.")  # fmt: skip
@aws_options
def publish(
    client: AwsClient,
    *,
    topic: str,
    message: str,
    subject: str | None,
    group: str | None,
    deduplication_id: str | None,
    attributes: list[tuple[str, str]],
) -> None:
    """Publish a message to a topic.

    \b
    trunkline sns publish news 'It works' -a kind=alert
    """
    optional = {"Subject": subject, "MessageGroupId": group, "MessageDeduplicationId": deduplication_id}
    given: dict[str, object] = {name: value for name, value in optional.items() if value is not None}
    if attributes:
        given["MessageAttributes"] = {key: {"DataType": "String", "StringValue": text} for key, text in attributes}
    click.echo(client.sns("Publish", TopicArn=_arn(client, topic), Message=message, **given)["MessageId"])
