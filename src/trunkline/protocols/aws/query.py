"""The Query protocol: parameters as fields of a form, results as XML.

A field's name says where its value stands: `Attribute.1.Name` is the name of the first attribute. SQS flattens lists and maps
and gives their members names of their own (`FLAT`); SNS calls members `member.1` and entries `entry.1.key`. What comes out of
here has the shape of the JSON protocol, so that an operation is written once; numbers stay text.

XML is written and never read: there is nothing for an entity or a bomb to be expanded by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from trunkline.protocols.aws.errors import AwsError

_MAX_LEVELS: Final = 8
_LINES: Final = {"\r": "&#xD;"}


class Flat(NamedTuple):
    """A list or map of SQS: the parameter that it is, and for a map what key and value are called."""

    parameter: str
    key: str = ""
    value: str = ""


FLAT: Final[Mapping[str, Flat]] = {
    "AttributeName": Flat("AttributeNames"),
    "MessageAttributeName": Flat("MessageAttributeNames"),
    "MessageSystemAttributeName": Flat("MessageSystemAttributeNames"),
    "Attribute": Flat("Attributes", "Name", "Value"),
    "Tag": Flat("Tags", "Key", "Value"),
    "TagKey": Flat("TagKeys"),
    "MessageAttribute": Flat("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": Flat("MessageSystemAttributes", "Name", "Value"),
    "SendMessageBatchRequestEntry": Flat("Entries"),
    "DeleteMessageBatchRequestEntry": Flat("Entries"),
    "ChangeMessageVisibilityBatchRequestEntry": Flat("Entries"),
    "AWSAccountId": Flat("AWSAccountIds"),
    "ActionName": Flat("Actions"),
}
NAMESPACES: Final = {
    "sqs": "http://queue.amazonaws.com/doc/2012-11-05/",
    "sns": "http://sns.amazonaws.com/doc/2010-03-31/",
}
# What the members of a flattened list are called in results; a pair is a map's, with its members' names.
_RESULT_LISTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Results": "ListMessageMoveTasksResultEntry",
    "Failed": "BatchResultErrorEntry",
}
_RESULT_MAPS: Final = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}

Tree = dict[str, "str | Tree"]


def read_form(form: str, max_fields: int) -> dict[str, str]:
    try:
        return dict(parse_qsl(form, keep_blank_values=True, max_num_fields=max_fields, errors="strict"))
    except (ValueError, UnicodeDecodeError) as error:
        raise AwsError("MalformedQueryString", f"The query string is malformed: {error}") from None


def parameters_of(fields: Mapping[str, str], service: str) -> dict[str, object]:
    """The fields of a form as the parameters that they say."""
    tree: Tree = {}
    for name, value in fields.items():
        steps = name.split(".")
        if len(steps) > _MAX_LEVELS:
            raise AwsError("MalformedQueryString", f"{name[:80]} is nested too deep")
        node = tree
        for step in steps[:-1]:
            inner = node.setdefault(step, {})
            if isinstance(inner, str):
                raise AwsError("MalformedQueryString", f"{name[:80]} is both a value and a structure")
            node = inner
        if isinstance(node.get(steps[-1]), dict):
            raise AwsError("MalformedQueryString", f"{name[:80]} is both a value and a structure")
        node[steps[-1]] = value
    return _flattened(tree) if service == "sqs" else {name: _nested(value) for name, value in tree.items()}


def _flattened(tree: Tree) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in tree.items():
        flat = FLAT.get(name)
        if flat is None or isinstance(value, str):
            if flat is not None and isinstance(value, str):
                found[flat.parameter] = [value]
            else:
                found[name] = value if isinstance(value, str) else _flattened(value)
            continue
        members = [value] if flat.key in value else _numbered(value)  # one attribute may come without a number
        if not flat.key:
            found[flat.parameter] = [each if isinstance(each, str) else _flattened(each) for each in members]
            continue
        table: dict[str, object] = {}
        for member in members:
            if isinstance(member, str) or not isinstance(member.get(flat.key), str):
                raise AwsError("MalformedQueryString", f"{name} has no {flat.key}")
            inner = member.get(flat.value, "")
            table[str(member[flat.key])] = inner if isinstance(inner, str) else _flattened(inner)
        found[flat.parameter] = table
    return found


def _nested(value: str | Tree) -> object:
    if isinstance(value, str):
        return value
    members = value.get("member")
    if isinstance(members, dict) and len(value) == 1:
        return [_nested(member) for member in _numbered(members)]
    entries = value.get("entry")
    if isinstance(entries, dict) and len(value) == 1:
        table: dict[str, object] = {}
        for entry in _numbered(entries):
            if isinstance(entry, str):
                raise AwsError("MalformedQueryString", "an entry of a map has a key and a value")
            key = entry.get("key", entry.get("Name"))
            if not isinstance(key, str):
                raise AwsError("MalformedQueryString", "an entry of a map has no key")
            table[key] = _nested(entry.get("value", entry.get("Value", "")))
        return table
    return {name: _nested(inner) for name, inner in value.items()}


def _numbered(tree: Tree) -> list[str | Tree]:
    try:
        return [tree[number] for number in sorted(tree, key=int)]
    except ValueError:
        raise AwsError("MalformedQueryString", "the members of a list are numbered") from None


# -- results -------------------------------------------------------------------------------------------------------------


def encode_result(service: str, operation: str, result: Mapping[str, object], request_id: str) -> bytes:
    body = "".join(_member(service, operation, name, value) for name, value in result.items())
    inner = f"<{operation}Result>{body}</{operation}Result>" if body else f"<{operation}Result/>"
    text = (
        f'<?xml version="1.0"?><{operation}Response xmlns="{NAMESPACES[service]}">{inner}'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{operation}Response>"
    )
    return text.encode()


def encode_error(service: str, error: AwsError, request_id: str) -> bytes:
    fault = "Sender" if error.senders_fault else "Receiver"
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACES[service]}"><Error><Type>{fault}</Type>'
        f"<Code>{error.code}</Code><Message>{_escaped(error.message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return text.encode()


def _member(service: str, operation: str, name: str, value: object) -> str:
    if value is None:
        return ""
    if service == "sqs":
        if isinstance(value, list):
            each = f"{operation}ResultEntry" if name == "Successful" else _RESULT_LISTS.get(name, name)
            return "".join(_element(service, operation, each, item) for item in value)
        if isinstance(value, dict) and name in _RESULT_MAPS:
            outer, key, held = _RESULT_MAPS[name]
            return "".join(
                f"<{outer}><{key}>{_escaped(str(k))}</{key}>{_element(service, operation, held, v)}</{outer}>"
                for k, v in value.items()
            )
    elif isinstance(value, list):
        return f"<{name}>{''.join(_element(service, operation, 'member', item) for item in value)}</{name}>"
    elif isinstance(value, dict) and name in ("Attributes", "attributes"):
        entries = "".join(f"<entry><key>{_escaped(str(k))}</key><value>{_escaped(str(v))}</value></entry>" for k, v in value.items())  # fmt: skip
        return f"<{name}>{entries}</{name}>"
    return _element(service, operation, name, value)


def _element(service: str, operation: str, name: str, value: object) -> str:
    if isinstance(value, dict):
        return f"<{name}>{''.join(_member(service, operation, key, inner) for key, inner in value.items())}</{name}>"
    if isinstance(value, bool):
        return f"<{name}>{str(value).lower()}</{name}>"
    return f"<{name}>{_escaped(str(value))}</{name}>"


def _escaped(text: str) -> str:
    return escape(text, _LINES)
