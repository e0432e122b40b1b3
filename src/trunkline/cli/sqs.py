"""`trunkline sqs`: list, create, show, set, delete, send, receive, purge, redrive, key."""

from __future__ import annotations

import json
import secrets
import sys
from typing import cast

import click

from trunkline.cli.aws_options import aws_options
from trunkline.cli.options import json_option, parse_pairs
from trunkline.cli.output import Json, print_json, print_table, remark
from trunkline.client.aws import AwsClient


@click.group
def sqs() -> None:
    """Queues as SQS has them: create, send, receive, redrive."""


def _url(client: AwsClient, name: str) -> str:
    return str(client.sqs("GetQueueUrl", QueueName=name)["QueueUrl"])


def _attributes(client: AwsClient, url: str) -> dict[str, str]:
    found = client.sqs("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return cast("dict[str, str]", found)


@sqs.command("list")
@click.option("--prefix", default="", help="Only queues whose name begins so.")
@json_option
@aws_options
def list_queues(client: AwsClient, prefix: str, as_json: bool) -> None:
    """List queues, how much is in them and in flight.

    \b
    trunkline sqs list
    trunkline sqs list --prefix orders --json
    """
    rows = []
    for url in cast("list[str]", client.sqs("ListQueues", QueueNamePrefix=prefix).get("QueueUrls", [])):
        found = _attributes(client, url)
        counts = [int(found[f"ApproximateNumberOfMessages{each}"]) for each in ("", "NotVisible", "Delayed")]
        rows.append((url.rpartition("/")[2], *counts, "fifo" if found.get("FifoQueue") == "true" else "standard", url))
    columns = ("queue", "visible", "in flight", "delayed", "kind", "url")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, empty="there are no queues yet; `trunkline sqs create NAME` makes one")


@sqs.command
@click.argument("name")
@click.option("-a", "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="Attribute; may be repeated.")  # fmt: skip
@click.option("-t", "--tag", "tags", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="Tag; may be repeated.")  # fmt: skip
@json_option
@aws_options
def create(
    client: AwsClient, name: str, attributes: list[tuple[str, str]], tags: list[tuple[str, str]], as_json: bool
) -> None:
    """Create a queue; succeeds if it is there just so. A name that ends with .fifo makes a FIFO queue.

    \b
    trunkline sqs create orders -a VisibilityTimeout=60
    trunkline sqs create orders.fifo -a ContentBasedDeduplication=true
    """
    given = dict(attributes)
    if name.endswith(".fifo"):
        given.setdefault("FifoQueue", "true")
    made = client.sqs("CreateQueue", QueueName=name, Attributes=given, tags=dict(tags))
    if as_json:
        print_json(cast(Json, made))
    else:
        click.echo(made["QueueUrl"])


@sqs.command
@click.argument("name")
@json_option
@aws_options
def show(client: AwsClient, name: str, as_json: bool) -> None:
    """Show a queue's attributes and tags.

    \b
    trunkline sqs show orders
    """
    url = _url(client, name)
    found = _attributes(client, url)
    tags = cast("dict[str, str]", client.sqs("ListQueueTags", QueueUrl=url).get("Tags", {}))
    if as_json:
        print_json({"QueueUrl": url, "Attributes": found, "Tags": tags})
        return
    print_table(("attribute", "value"), [*sorted(found.items()), *((f"tag {name}", tag) for name, tag in tags.items())])


@sqs.command("set")
@click.argument("name")
@click.argument("attributes", nargs=-1, required=True, callback=parse_pairs, metavar="NAME=VALUE...")
@aws_options
def set_attributes(client: AwsClient, name: str, attributes: list[tuple[str, str]]) -> None:
    """Change attributes of a queue.

    \b
    trunkline sqs set orders VisibilityTimeout=120 DelaySeconds=5
    """
    client.sqs("SetQueueAttributes", QueueUrl=_url(client, name), Attributes=dict(attributes))


@sqs.command
@click.argument("name")
@aws_options
def delete(client: AwsClient, name: str) -> None:
    """Delete a queue with its messages.

    \b
    trunkline sqs delete orders
    """
    client.sqs("DeleteQueue", QueueUrl=_url(client, name))


@sqs.command
@click.argument("name")
@aws_options
def purge(client: AwsClient, name: str) -> None:
    """Drop every message that is not in flight.

    \b
    trunkline sqs purge orders
    """
    client.sqs("PurgeQueue", QueueUrl=_url(client, name))


@sqs.command
@click.argument("name")
@click.argument("body", required=False)
@click.option("--group", help="Message group, of a FIFO queue.")
@click.option("--deduplication-id", help="Deduplication id, of a FIFO queue.")
@click.option("--delay", type=click.IntRange(0, 900), metavar="SECONDS", help="Let it be received no sooner.")
@click.option("-a", "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="Message attribute; may be repeated.")  # fmt: skip
@json_option
@aws_options
def send(
    client: AwsClient,
    *,
    name: str,
    body: str | None,
    group: str | None,
    deduplication_id: str | None,
    delay: int | None,
    attributes: list[tuple[str, str]],
    as_json: bool,
) -> None:
    """Send a message, or each line of the input as one.

    \b
    trunkline sqs send orders '{"id": 7}' -a kind=new
    cat lines | trunkline sqs send orders
    """
    url = _url(client, name)
    given: dict[str, object] = {"QueueUrl": url}
    if attributes:
        given["MessageAttributes"] = {key: {"DataType": "String", "StringValue": text} for key, text in attributes}
    optional = {"MessageGroupId": group, "MessageDeduplicationId": deduplication_id, "DelaySeconds": delay}
    given |= {key: value for key, value in optional.items() if value is not None}
    for text in [body] if body is not None else (line.rstrip("\n") for line in sys.stdin):
        sent = client.sqs("SendMessage", MessageBody=text, **given)
        if as_json:
            print_json(cast(Json, sent))
        else:
            click.echo(sent["MessageId"])


@sqs.command
@click.argument("name")
@click.option("-n", "--max", "most", type=click.IntRange(1, 10), default=1, help="Messages at most.  [default: 1]")
@click.option("--wait", type=click.IntRange(0, 20), default=0, metavar="SECONDS", help="Wait for messages so long.")
@click.option("--keep", is_flag=True, help="Leave them in the queue: they are visible again at once.")
@json_option
@aws_options
def receive(client: AwsClient, name: str, most: int, wait: int, keep: bool, as_json: bool) -> None:
    """Receive messages, print their bodies and delete them.

    \b
    trunkline sqs receive orders -n 10 --wait 5
    trunkline sqs receive orders --keep --json
    """
    url = _url(client, name)
    answer = client.sqs(
        "ReceiveMessage",
        QueueUrl=url,
        MaxNumberOfMessages=most,
        WaitTimeSeconds=wait,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
    )
    messages = cast("list[dict[str, str]]", answer.get("Messages", []))
    if as_json:
        print_json(cast(Json, messages))
    for message in messages:
        if not as_json:
            click.echo(message["Body"])
        if keep:
            client.sqs("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)  # fmt: skip
        else:
            client.sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    if not messages and not as_json:
        remark("there are no messages now")


@sqs.command
@click.argument("name")
@click.option("--to", "target", metavar="QUEUE", help="Move them here, not where they came from.")
@click.option("--rate", type=click.IntRange(1, 500), help="Messages a second at most.")
@click.option("--status", is_flag=True, help="Only show how far the last tasks have come.")
@json_option
@aws_options
def redrive(client: AwsClient, name: str, target: str | None, rate: int | None, status: bool, as_json: bool) -> None:
    """Move the messages of a dead-letter queue back.

    \b
    trunkline sqs redrive orders-dead
    trunkline sqs redrive orders-dead --to inspection --rate 50
    trunkline sqs redrive orders-dead --status
    """
    arn = _attributes(client, _url(client, name))["QueueArn"]
    if not status:
        given: dict[str, object] = {"SourceArn": arn}
        if target is not None:
            given["DestinationArn"] = _attributes(client, _url(client, target))["QueueArn"]
        if rate is not None:
            given["MaxNumberOfMessagesPerSecond"] = rate
        client.sqs("StartMessageMoveTask", **given)
    found = cast("list[dict[str, str]]", client.sqs("ListMessageMoveTasks", SourceArn=arn, MaxResults=10)["Results"])
    if as_json:
        print_json(cast(Json, found))
        return
    rows = [(each["Status"], each["ApproximateNumberOfMessagesMoved"], each["ApproximateNumberOfMessagesToMove"]) for each in found]  # fmt: skip
    print_table(("status", "moved", "of"), rows, empty="there are no tasks")


@sqs.command
@click.argument("user")
@click.option("--remove", is_flag=True, help="Take the key away.")
@json_option
@aws_options
def key(client: AwsClient, user: str, remove: bool, as_json: bool) -> None:
    """Give a user a new key to sign requests to SQS and SNS with. The access key is the user's name.

    \b
    trunkline sqs key alice
    """
    secret = None if remove else secrets.token_urlsafe(30)
    client.call("Trunkline", "sqs", "PutAccessKey", {"User": user, "Secret": secret})
    if as_json:
        click.echo(json.dumps({"AccessKeyId": user, "SecretAccessKey": secret}))
    elif secret is not None:
        click.echo(f"AWS_ACCESS_KEY_ID={user}\nAWS_SECRET_ACCESS_KEY={secret}")
