"""Requests to calls, and results to responses: the two protocols that clients of SQS and SNS speak. No I/O.

    JSON 1.0   POST /, `x-amz-target: AmazonSQS.SendMessage`, a JSON object; errors are {"__type", "message"} and
               `x-amzn-query-error: code;Sender`, which clients that began with the Query protocol go on comparing
    Query      a form in the body or in the query of a GET, `Action=SendMessage&Version=2012-11-05&…`; XML comes back

Which service is meant says the target's prefix, or the form's version: 2012-11-05 is SQS, 2010-03-31 SNS. A Query request for a
queue may name it by its path. Everything malformed is an `AwsError`; JSON is read no deeper than `max_nesting`.
"""

from __future__ import annotations

import json
from typing import Final

from trunkline.protocols.aws.call import Call, Result
from trunkline.protocols.aws.errors import AwsError
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.query import encode_error, encode_result, parameters_of, read_form
from trunkline.protocols.http.message import Request, Response

JSON_TYPE: Final = "application/x-amz-json-1.0"
_XML_TYPE: Final = "text/xml"
_TARGETS: Final = {"AmazonSQS": "sqs", "AmazonSNS": "sns", "Trunkline": "own"}  # the last has what Amazon has elsewhere
_VERSIONS: Final = {"2012-11-05": "sqs", "2010-03-31": "sns"}
_OPEN: Final = frozenset(b"{[")
_SHUT: Final = frozenset(b"}]")
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_BOUNDED_BYTES: Final = 256  # so short a document is not nested too deep for Python, whatever is in it


def decode(request: Request, limits: AwsLimits) -> Call:
    target = request.headers.get("x-amz-target")
    if target is not None:
        prefix, _, operation = target.partition(".")
        service = _TARGETS.get(prefix)
        if service is None or request.method != "POST":
            raise AwsError("UnknownOperationException", f"There is no operation {target[:80]}.", status=404)
        return Call(service, operation, read_json_object(request.body, limits.max_nesting), json=True)
    if request.method == "POST":
        try:
            form = request.body.decode()
        except UnicodeDecodeError:
            raise AwsError("MalformedQueryString", "The form is not UTF-8.") from None
        if request.query:
            form = f"{request.query}&{form}"
    elif request.method == "GET":
        form = request.query
    else:
        raise AwsError("InvalidAction", f"{request.method} is no way to ask for an operation.", status=405)
    fields = read_form(form, limits.max_form_fields)
    operation = fields.pop("Action", "")
    if not operation:
        raise AwsError("MissingAction", "The request must contain the parameter Action.")
    version = fields.pop("Version", "2012-11-05")
    service = _VERSIONS.get(version)
    if service is None:
        raise AwsError("NoSuchVersion", f"The requested version ({version[:40]}) is not valid.")
    parameters = parameters_of(fields, service)
    if service == "sqs" and "QueueUrl" not in parameters and request.path.strip("/"):
        parameters["QueueUrl"] = request.path
    return Call(service, operation, parameters, json=False)


def read_json_object(body: bytes, max_nesting: int) -> dict[str, object]:
    if len(body) > _BOUNDED_BYTES and _nesting(body, max_nesting) > max_nesting:
        raise AwsError("SerializationException", f"The request is nested more than {max_nesting} deep.")
    try:
        read = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        raise AwsError("SerializationException", "The request is no JSON.") from None
    if not isinstance(read, dict):
        raise AwsError("SerializationException", "The request is no JSON object.")
    return read


def _nesting(body: bytes, enough: int) -> int:
    """How deep a document is nested, or a little more than `enough`; brackets in strings do not count."""
    if body.count(b"{") + body.count(b"[") <= enough:
        return 0
    depth = deepest = 0
    position, end = 0, len(body)
    while position < end and deepest <= enough:
        byte = body[position]
        if byte == _QUOTE:
            position += 1
            while position < end and body[position] != _QUOTE:
                position += 2 if body[position] == _BACKSLASH else 1
        elif byte in _OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif byte in _SHUT:
            depth -= 1
        position += 1
    return deepest


def encode(call: Call, result: Result | AwsError) -> Response:
    if isinstance(result, AwsError):
        return encode_failure(result, call.request_id, service=call.service, as_json=call.json)
    headers = [("x-amzn-requestid", call.request_id)]
    if call.json:
        return Response(200, json.dumps(result, separators=(",", ":")).encode(), JSON_TYPE, headers)
    body = encode_result(call.service, call.operation, result, call.request_id)
    return Response(200, body, _XML_TYPE, headers)


def encode_failure(error: AwsError, request_id: str, *, service: str, as_json: bool) -> Response:
    headers = [("x-amzn-requestid", request_id)]
    if not as_json:
        return Response(error.status, encode_error(service, error, request_id), _XML_TYPE, headers)
    fault = "Sender" if error.senders_fault else "Receiver"
    headers.append(("x-amzn-query-error", f"{error.code};{fault}"))
    document = {"__type": error.type, "message": error.message}
    return Response(error.status, json.dumps(document).encode(), JSON_TYPE, headers)
