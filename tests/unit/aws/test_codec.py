"""The two protocols on the wire: what is read, what is refused, what comes back."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cursors.queue import Delivery
from trunkline.log.records import encode_headers
from trunkline.protocols.aws import md5
from trunkline.protocols.aws.call import Call
from trunkline.protocols.aws.codec import decode, encode, read_json_object
from trunkline.protocols.aws.contents import Content, read_wanted, shown
from trunkline.protocols.aws.errors import AwsError
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.message_attributes import MessageAttribute, as_headers, attributes_in
from trunkline.protocols.aws.message_ids import MessageIds, derived_id, sent_ms_of, sequence_of
from trunkline.protocols.aws.names import name_in_url
from trunkline.protocols.aws.query import parameters_of
from trunkline.protocols.aws.receipts import Receipt, Receipts
from trunkline.protocols.http.message import Request

LIMITS = AwsLimits()


def decoded(request: Request) -> Call:
    async def within() -> Call:
        return decode(request, LIMITS)

    return asyncio.run(within())


def refusal(read: Callable[[], object]) -> int | None:
    """The status of what cannot be read; None for what can. Nothing else is raised."""
    try:
        read()
    except AwsError as error:
        return error.status
    return None


def form(fields: str, path: str = "/") -> Request:
    return Request("POST", path, "", {"content-type": "application/x-www-form-urlencoded"}, fields.encode())


def test_a_form_says_what_json_says() -> None:
    call = decoded(
        form(
            "Action=SendMessage&Version=2012-11-05&MessageBody=a%20b&DelaySeconds=5"
            "&MessageAttribute.1.Name=n&MessageAttribute.1.Value.DataType=Number&MessageAttribute.1.Value.StringValue=4",
            "/000000000000/q",
        )
    )
    assert (call.service, call.operation, call.json) == ("sqs", "SendMessage", False)
    assert call.parameters == {
        "QueueUrl": "/000000000000/q",
        "MessageBody": "a b",
        "DelaySeconds": "5",
        "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "4"}},
    }


def test_lists_and_maps_of_both_services() -> None:
    assert parameters_of(
        {
            "SendMessageBatchRequestEntry.2.Id": "b",
            "SendMessageBatchRequestEntry.1.Id": "a",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "x",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "String",
            "Attribute.Name": "VisibilityTimeout",
            "Attribute.Value": "3",
            "AttributeName.1": "All",
            "Tag.1.Key": "k",
            "Tag.1.Value": "v",
        },
        "sqs",
    ) == {
        "Entries": [{"Id": "a", "MessageAttributes": {"x": {"DataType": "String"}}}, {"Id": "b"}],
        "Attributes": {"VisibilityTimeout": "3"},
        "AttributeNames": ["All"],
        "Tags": {"k": "v"},
    }
    assert parameters_of(
        {
            "Attributes.entry.1.key": "FifoTopic",
            "Attributes.entry.1.value": "true",
            "Tags.member.1.Key": "k",
            "Tags.member.1.Value": "v",
            "MessageAttributes.entry.1.Name": "a",
            "MessageAttributes.entry.1.Value.DataType": "String",
        },
        "sns",
    ) == {
        "Attributes": {"FifoTopic": "true"},
        "Tags": [{"Key": "k", "Value": "v"}],
        "MessageAttributes": {"a": {"DataType": "String"}},
    }


@given(st.dictionaries(st.text(min_size=1, max_size=30), st.text(max_size=20), max_size=20))
def test_any_form_is_read_or_refused(fields: dict[str, str]) -> None:
    for service in ("sqs", "sns"):
        assert refusal(partial(parameters_of, fields, service)) in (None, 400)


@given(st.binary(max_size=300))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    request = Request("POST", "/", "", {"x-amz-target": "AmazonSQS.SendMessage"}, body)
    for each in (request, form(body.decode("latin-1"))):
        assert refusal(partial(decoded, each)) in (None, 400, 404)


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"a":' * 50_000, b"{", b"[]", b'"x"', b"\xff", b'{"a":"' + b"\\" * 999, b'{"Entries":' + b"[" * 5000],
)  # fmt: skip
def test_json_that_is_malformed_or_nested_without_end_is_refused(body: bytes) -> None:
    with pytest.raises(AwsError) as caught:
        read_json_object(body, LIMITS.max_nesting)
    assert caught.value.code == "SerializationException"


def test_brackets_in_strings_are_no_nesting() -> None:
    text = json.dumps({"MessageBody": '[[{"' * 5000})
    assert read_json_object(text.encode(), 32) == json.loads(text)


def test_errors_have_both_names() -> None:
    error = AwsError("QueueDoesNotExist", "no <queue> & so on")
    call = decoded(Request("POST", "/", "", {"x-amz-target": "AmazonSQS.SendMessage"}, b"{}"))
    answer = encode(call, error)
    assert answer.status == 400
    assert json.loads(answer.body)["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    assert ("x-amzn-query-error", "AWS.SimpleQueueService.NonExistentQueue;Sender") in answer.headers
    answer = encode(decoded(form("Action=SendMessage&Version=2012-11-05")), error)
    found = ET.fromstring(answer.body)
    space = "{http://queue.amazonaws.com/doc/2012-11-05/}"
    assert found.findtext(f"{space}Error/{space}Code") == "AWS.SimpleQueueService.NonExistentQueue"
    assert found.findtext(f"{space}Error/{space}Message") == "no <queue> & so on"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")))
def test_text_comes_out_of_the_xml_as_it_went_in(text: str) -> None:
    call = decoded(form("Action=ReceiveMessage&Version=2012-11-05"))
    answer = encode(call, {"Messages": [{"Body": text + "\r\n\t", "Attributes": {"a": text}}]})
    found = ET.fromstring(answer.body)
    space = "{http://queue.amazonaws.com/doc/2012-11-05/}"
    message = found.find(f"{space}ReceiveMessageResult/{space}Message")
    assert message is not None
    assert (message.findtext(f"{space}Body") or "") == text + "\r\n\t"
    assert (message.findtext(f"{space}Attribute/{space}Value") or "") == text


ATTRIBUTES = st.lists(
    st.builds(
        lambda name, kind, value: MessageAttribute(name, kind, value.encode()),
        st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True),
        st.sampled_from(["String", "String.x", "Number", "Binary", "Binary.gif"]),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), min_size=1),
    ),
    unique_by=lambda attribute: attribute.name,
    max_size=10,
)  # fmt: skip


@given(ATTRIBUTES)
def test_attributes_come_out_of_the_log_as_they_went_in(attributes: list[MessageAttribute]) -> None:
    headers = as_headers(attributes)
    assert attributes_in(encode_headers(headers), headers) == attributes


@given(
    st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=8), st.binary(max_size=50)
)
def test_whatever_another_protocol_wrote_can_be_shown(headers: list[tuple[str, bytes | None]], body: bytes) -> None:
    from trunkline.cursors.queue import Message

    message = Message(body, encode_headers(headers), b"\xff", 5)
    delivery = Delivery(3, message, False, 1, None, None)  # type: ignore[arg-type]
    told = shown(delivery, "t", "h", read_wanted(["All"], ["All"]), 1, "eu-west-1")
    ET.fromstring(encode(decoded(form("Action=ReceiveMessage&Version=2012-11-05")), {"Messages": [told]}).body)
    raw = base64.b64decode(str(told["Body"])) if "trunkline.body-encoding" in str(told) else str(told["Body"]).encode()
    assert raw == body


def test_the_digest_of_attributes_is_computed_over_names_in_order() -> None:
    """That it is Amazon's is what boto3 checks with every message of tests/integration."""
    one, two = MessageAttribute("a", "String", b"b"), MessageAttribute("b", "Binary", b"b")
    text = b"\0\0\0\x01a\0\0\0\x06String\x01\0\0\0\x01b"
    assert md5.of_attributes([one]) == hashlib.md5(text).hexdigest()
    assert md5.of_attributes([one, two]) == md5.of_attributes([two, one])


def test_ids_tell_when_and_in_which_order() -> None:
    ids = MessageIds()
    made = [ids.new(1_700_000_000_000 + number // 3) for number in range(50)]
    assert len(set(made)) == 50
    assert [sequence_of(id) for id in made] == sorted(sequence_of(id) for id in made)
    assert len({sequence_of(id) for id in made}) == 50
    assert sent_ms_of(made[0]) == 1_700_000_000_000
    assert sent_ms_of("not-one") is None
    assert derived_id("t", 7, 99) == derived_id("t", 7, 99) != derived_id("t", 8, 99)
    assert sent_ms_of(derived_id("t", 7, 99)) == 99


@given(st.text(max_size=100))
def test_no_text_is_a_handle_but_those_that_were_given(text: str) -> None:
    receipts = Receipts("secret")
    handle = receipts.handle(b"q" * 16, Receipt(5, 2, 99))
    assert receipts.read(handle, b"q" * 16) == Receipt(5, 2, 99)
    for wrong, queue in ((text, b"q" * 16), (handle, b"r" * 16), (text + handle, b"q" * 16)):
        if wrong != handle or queue != b"q" * 16:
            with pytest.raises(AwsError):
                receipts.read(wrong, queue)
    with pytest.raises(AwsError):
        Receipts("other").read(handle, b"q" * 16)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:4566/000000000000/q",
        "http://sqs.eu-west-1.localhost.localstack.cloud:4566/000000000000/q",
        "http://eu-west-1.queue.localhost.localstack.cloud:4566/000000000000/q",
        "http://localhost:4566/queue/eu-west-1/000000000000/q",
        "/000000000000/q/",
        "q",
    ],
)
def test_urls_of_all_shapes_name_a_queue(url: str) -> None:
    assert name_in_url(url) == "q"


def test_content_counts_its_attributes() -> None:
    content = Content(b"12345", [MessageAttribute("ab", "String", b"123")], [])
    assert content.size_bytes == 5 + 2 + 6 + 3
