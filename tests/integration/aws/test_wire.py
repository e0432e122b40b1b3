"""What goes over the wire: the Query protocol, malformed requests, signatures, and ten thousand long polls."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.aws.conftest import CREDENTIALS, QueueFactory, bodies, endpoint, error_of, open_client
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def request(
    server: ServerProcess, method: str, path: str, body: bytes | str = b"", **headers: str
) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port_of("aws"), timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def query(server: ServerProcess, action: str, path: str = "/", **fields: str) -> tuple[int, ET.Element]:
    given = {
        "Action": action,
        "Version": "2012-11-05",
        **{name.replace("__", "."): text for name, text in fields.items()},
    }
    form = urllib.parse.urlencode(given)
    status, body, _ = request(server, "POST", path, form, content_type="application/x-www-form-urlencoded")
    return status, ET.fromstring(body)


def text_at(element: ET.Element, path: str) -> str | None:
    return element.findtext("/".join(SPACE + step for step in path.split("/")))


def test_the_query_protocol_does_what_json_does(aws: ServerProcess, unique: Callable[[str], str]) -> None:
    name = unique("old")
    status, made = query(
        aws, "CreateQueue", QueueName=name, Attribute__1__Name="VisibilityTimeout", Attribute__1__Value="60"
    )
    url = text_at(made, "CreateQueueResult/QueueUrl") or ""
    assert status == 200
    assert url.endswith(f"/000000000000/{name}")
    path = urllib.parse.urlsplit(url).path
    _, sent = query(
        aws,
        "SendMessage",
        path,
        MessageBody="a <b> & c",
        MessageAttribute__1__Name="n",
        MessageAttribute__1__Value__DataType="Number",
        MessageAttribute__1__Value__StringValue="5",
    )
    assert len(text_at(sent, "SendMessageResult/MD5OfMessageAttributes") or "") == 32
    _, got = query(aws, "ReceiveMessage", path, AttributeName__1="All", MessageAttributeName__1="All")
    message = got.find(f"{SPACE}ReceiveMessageResult/{SPACE}Message")
    assert message is not None
    assert text_at(message, "Body") == "a <b> & c"
    assert text_at(message, "MessageAttribute/Value/StringValue") == "5"
    handle = text_at(message, "ReceiptHandle") or ""
    entry = "ChangeMessageVisibilityBatchRequestEntry.1."
    _, changed = query(aws, "ChangeMessageVisibilityBatch", path, **{f"{entry}Id": "x", f"{entry}ReceiptHandle": handle, f"{entry}VisibilityTimeout": "9"})  # fmt: skip
    assert text_at(changed, "ChangeMessageVisibilityBatchResult/ChangeMessageVisibilityBatchResultEntry/Id") == "x"
    assert query(aws, "DeleteMessage", path, ReceiptHandle=handle)[0] == 200
    _, empty = query(aws, "ReceiveMessage", path)
    assert empty.find(f"{SPACE}ReceiveMessageResult") is not None
    entry = "SendMessageBatchRequestEntry."
    _, batch = query(aws, "SendMessageBatch", path, **{f"{entry}1.Id": "a", f"{entry}1.MessageBody": "1", f"{entry}2.Id": "b"})  # fmt: skip
    assert text_at(batch, "SendMessageBatchResult/SendMessageBatchResultEntry/Id") == "a"
    assert text_at(batch, "SendMessageBatchResult/BatchResultErrorEntry/Code") == "MissingParameter"
    _, attributes = query(aws, "GetQueueAttributes", path, AttributeName__1="VisibilityTimeout")
    assert text_at(attributes, "GetQueueAttributesResult/Attribute/Value") == "60"
    status, body, _ = request(aws, "GET", f"/?Action=ListQueues&Version=2012-11-05&QueueNamePrefix={name}")
    assert text_at(ET.fromstring(body), "ListQueuesResult/QueueUrl") == url
    query(aws, "DeleteQueue", path)
    status, error = query(aws, "SendMessage", path, MessageBody="m")
    assert (status, text_at(error, "Error/Code")) == (400, "AWS.SimpleQueueService.NonExistentQueue")
    assert text_at(error, "Error/Type") == "Sender"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("POST", "/", b"{", {"x_amz_target": "AmazonSQS.SendMessage"}, 400, b"SerializationException"),
        ("POST", "/", b"[" * 500_000, {"x_amz_target": "AmazonSQS.SendMessage"}, 400, b"SerializationException"),
        ("POST", "/", b"[]", {"x_amz_target": "AmazonSQS.SendMessage"}, 400, b"SerializationException"),
        ("POST", "/", b"{}", {"x_amz_target": "AmazonSQS.Nonsense"}, 400, b"InvalidAction"),
        ("POST", "/", b"{}", {"x_amz_target": "Other.SendMessage"}, 404, b"UnknownOperation"),
        ("POST", "/", b"{}", {"x_amz_target": "AmazonSQS.SendMessage"}, 400, b"MissingParameter"),
        ("POST", "/", b'{"QueueUrl": 5}', {"x_amz_target": "AmazonSQS.SendMessage"}, 400, b"SerializationException"),
        ("POST", "/", b'{"QueueUrl": "http://h/0/none", "MessageBody": "m"}', {"x_amz_target": "AmazonSQS.SendMessage"}, 400, b"QueueDoesNotExist"),
        ("POST", "/", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", {}, 400, b"MissingAction"),
        ("POST", "/", b"Action=SendMessage&Version=1999-01-01", {}, 400, b"NoSuchVersion"),
        ("POST", "/", b"&".join(b"a%d=b" % n for n in range(9000)), {}, 400, b"MalformedQueryString"),
        ("POST", "/", b"Action=ListQueues&a.b.c.d.e.f.g.h.i.j=1&Version=2012-11-05", {}, 400, b"MalformedQueryString"),
        ("POST", "/", b"Action=ListQueues&a=1&a.b=2&Version=2012-11-05", {}, 400, b"MalformedQueryString"),
        ("POST", "/", b"Action=%ff", {}, 400, b"MalformedQueryString"),
        ("DELETE", "/", b"", {}, 405, b"InvalidAction"),
        ("GET", "/", b"", {}, 400, b"MissingAction"),
    ],
    ids=range(16),
)  # fmt: skip
def test_malformed_requests_get_the_right_error(
    aws: ServerProcess, method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: bytes
) -> None:
    found, answer, _ = request(aws, method, path, body, **headers)
    assert (found, code in answer) == (status, True), answer[:300]


def test_a_user_signs_and_may_do_what_it_may(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "aws", {"aws_anonymous": "true"}).start()
    try:
        put_key(server, "guest", "a-secret-of-guests")
        signed = {"aws_access_key_id": "guest", "aws_secret_access_key": "a-secret-of-guests"}
        sqs = open_client(server, **signed)
        url = sqs.create_queue(QueueName="signed")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="m")
        (got,) = sqs.receive_message(QueueUrl=url, AttributeNames=["SenderId"])["Messages"]
        assert got["Attributes"]["SenderId"] == "guest"
        wrong = open_client(server, **{**signed, "aws_secret_access_key": "another"})
        assert error_of(wrong.list_queues) == ("SignatureDoesNotMatch", 403)
        server.stop()
        server._environment["TRUNKLINE_AWS_ANONYMOUS"] = "false"
        server.start()
        assert bodies(open_client(server, **signed).receive_message(QueueUrl=url)) == ["m"], "visible after the restart"
        assert error_of(open_client(server).list_queues) == ("InvalidClientTokenId", 403)
        status, answer, _ = request(server, "POST", "/", b"{}", x_amz_target="AmazonSQS.ListQueues")
        assert (status, b"MissingAuthenticationToken" in answer) == (403, True)
        put = json.dumps({"User": "guest", "Secret": "x" * 20})
        assert request(server, "POST", "/", put, x_amz_target="Trunkline.PutAccessKey")[0] == 403
        presigned = open_client(server, "sns", **signed)
        assert presigned.list_topics()["Topics"] == []
    finally:
        server.close()


def put_key(server: ServerProcess, user: str, secret: str) -> None:
    body = json.dumps({"User": user, "Secret": secret})
    status, answer, _ = request(server, "POST", "/", body, x_amz_target="Trunkline.PutAccessKey")
    assert status == 200, answer


def test_ten_thousand_long_polls_wait_and_take_nothing_of_the_processor(fresh_aws: ServerProcess) -> None:
    """Five thousand where this process may not have so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    polls = 10_000 if hard >= 11_000 else 500
    sqs = open_client(fresh_aws)
    url = sqs.create_queue(QueueName="waiting", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    head = (
        f"POST / HTTP/1.1\r\nhost: x\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {len(body)}\r\n\r\n"
    )

    async def poll(port: int, gate: asyncio.Semaphore, begun: list[float]) -> bytes:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        begun.append(time.monotonic())
        try:
            found = await reader.readuntil(b"\r\n\r\n")
            length = int(next(line for line in found.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1])  # fmt: skip
            return await reader.readexactly(length)
        finally:
            writer.close()

    def processor_s() -> float:
        fields = Path(f"/proc/{fresh_aws.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def check() -> list[bytes]:
        gate, begun = asyncio.Semaphore(200), list[float]()
        tasks = [asyncio.create_task(poll(fresh_aws.port_of("aws"), gate, begun)) for _ in range(polls)]
        while len(begun) < polls:
            await asyncio.sleep(0.05)
        before = processor_s()
        await asyncio.sleep(1)
        assert processor_s() - before < 0.6, "waiting costs nothing"
        for number in range(5):
            await asyncio.to_thread(sqs.send_message, QueueUrl=url, MessageBody=f"m{number}")
        return await asyncio.gather(*tasks)

    answers = asyncio.run(check())
    found = [json.loads(answer)["Messages"][0]["Body"] for answer in answers if b"Messages" in answer]
    assert sorted(found) == [f"m{number}" for number in range(5)], "each to one of them"
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_aiobotocore_sends_waits_and_deletes(aws: ServerProcess, queue: QueueFactory) -> None:
    from aiobotocore.session import get_session

    url = queue()

    async def check() -> None:
        async with get_session().create_client("sqs", endpoint_url=endpoint(aws), **CREDENTIALS) as sqs:
            waiting = asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
            await asyncio.gather(*(sqs.send_message(QueueUrl=url, MessageBody=str(number)) for number in range(20)))
            found = (await waiting)["Messages"]
            while len(found) < 20:
                answer = await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, MaxNumberOfMessages=10)
                found += answer.get("Messages", [])
            assert sorted(int(message["Body"]) for message in found) == list(range(20))
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found[:10])]
            assert len((await sqs.delete_message_batch(QueueUrl=url, Entries=entries))["Successful"]) == 10
            for message in found[10:]:
                await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            counts = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            assert counts["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0"
            with pytest.raises(ClientError):
                await sqs.send_message(QueueUrl=url, MessageBody="")

    asyncio.run(check())


def test_the_command_line(aws: ServerProcess, unique: Callable[[str], str]) -> None:
    from click.testing import CliRunner

    from trunkline.cli.main import cli

    name, dead, topic = unique("q"), unique("dead"), unique("t")

    def run(*arguments: str, stdin: str | None = None) -> str:
        result = CliRunner().invoke(cli, [*arguments, "--endpoint-url", endpoint(aws)], input=stdin)
        assert result.exit_code == 0, result.output
        return result.output

    run("sqs", "create", dead)
    arn = json.loads(run("sqs", "show", dead, "--json"))["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    run("sqs", "create", name, "-a", "VisibilityTimeout=60", "-t", "team=a")
    run("sqs", "set", name, f"RedrivePolicy={policy}")
    assert "tag team" in run("sqs", "show", name)
    run("sqs", "send", name, stdin="one\ntwo\n")
    assert run("sqs", "receive", name, "--wait", "5") == "one\n"
    run("sqs", "receive", name, "--keep", "--wait", "5")
    wait_until(lambda: run("sqs", "receive", dead, "--keep") == "two\n", 10, "the dead letter")
    run("sqs", "set", name, "VisibilityTimeout=30")
    wait_until(
        lambda: json.loads(run("sqs", "list", "--prefix", dead, "--json"))[0]["visible"] == 1, 10, "it is visible"
    )
    run("sqs", "redrive", dead)
    assert run("sqs", "receive", name, "--wait", "10") == "two\n"
    wait_until(lambda: "COMPLETED" in run("sqs", "redrive", dead, "--status"), 10, "the end of the task")
    run("sns", "create", topic)
    run("sns", "subscribe", topic, name, "--raw", "--filter", '{"kind": ["alert"]}')
    assert name in run("sns", "subscriptions", topic)
    run("sns", "publish", topic, "no", "-a", "kind=other")
    run("sns", "publish", topic, "yes", "-a", "kind=alert")
    assert run("sqs", "receive", name, "--wait", "5") == "yes\n"
    assert topic in run("sns", "topics")
    run("sqs", "send", name, "gone")
    run("sqs", "purge", name)
    key = json.loads(run("sqs", "key", "guest", "--json"))
    assert run("sns", "topics", "--access-key", "guest", "--secret-key", key["SecretAccessKey"])
    run("sqs", "key", "guest", "--remove")
    for command in (("sns", "delete", topic), ("sqs", "delete", name), ("sqs", "delete", dead)):
        run(*command)
    missing = CliRunner().invoke(cli, ["sqs", "show", name, "--endpoint-url", endpoint(aws)])
    assert missing.exit_code == 1
    assert "NonExistentQueue" in missing.output
