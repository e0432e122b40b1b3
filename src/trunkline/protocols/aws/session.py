"""The way of a request: read, who asks, the operation, the answer.

HTTP keeps the order of a connection; nothing of these protocols outlives a request, so this is all of the session there is.

    request ── decode ──> call ── identify ──> operation ── result ──> response
                 └── AwsError: the answer ──────┴──────────┘

Every request has one answer, in the protocol that it came in. What nobody foresaw is `InternalFailure`, and in the broker's log.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping

from trunkline.broker.complaints import Complaints
from trunkline.cursors.queue import QueueError
from trunkline.log.errors import LogError
from trunkline.protocols.aws.access import Access
from trunkline.protocols.aws.call import Call, Later, Operation, Result
from trunkline.protocols.aws.codec import decode, encode, encode_failure
from trunkline.protocols.aws.errors import AwsError
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.http.message import Request, Response


class Requests:
    """Is the handler of an HTTP server. `operations` are those of each service, by name."""

    def __init__(
        self,
        operations: Mapping[str, Mapping[str, Operation]],
        access: Access,
        complaints: Complaints,
        limits: AwsLimits,
        *,
        advertised_host: str | None = None,
    ) -> None:
        self._operations = operations
        self._access = access
        self._complaints = complaints
        self._limits = limits
        self._advertised_host = advertised_host
        self._served = 0
        self._run = uuid.uuid4().hex[:20]

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        self._served += 1
        number = f"{self._served:012x}"
        request_id = f"{self._run[:8]}-{self._run[8:12]}-{self._run[12:16]}-{self._run[16:20]}-{number}"
        try:
            call = decode(request, self._limits)
        except AwsError as error:
            as_json = "x-amz-target" in request.headers
            return encode_failure(error, request_id, service="sqs", as_json=as_json)
        call.request_id, call.encode = request_id, encode
        call.host = request.headers.get("host", "localhost")
        if self._advertised_host is not None:
            _, colon, port = call.host.rpartition(":")
            call.host = f"{self._advertised_host}{colon}{port}" if colon else self._advertised_host
        if request.listener.endswith("-tls"):
            call.scheme = "https"
        try:
            self._access.identify(request, call)
            operation = self._operations[call.service].get(call.operation)
            if operation is None:
                raise AwsError("InvalidAction", f"The action {call.operation[:80]} is not valid for this web service.")
            answer = operation(call)
        except Exception as error:
            return encode(call, self._failure(call, request, error))
        if isinstance(answer, dict):
            return encode(call, answer)
        return call.reply if isinstance(answer, Later) else self._answer(call, request, answer)

    async def _answer(self, call: Call, request: Request, answer: Awaitable[Result | Later]) -> Response:
        try:
            result = await answer
            return await call.reply if isinstance(result, Later) else encode(call, result)
        except Exception as error:
            return encode(call, self._failure(call, request, error))

    def _failure(self, call: Call, request: Request, error: Exception) -> AwsError:
        if isinstance(error, AwsError):
            return error
        if not isinstance(error, LogError | QueueError):
            self._complaints.add("AWS failure", request.client, f"{call.operation} failed", error=error)
            return AwsError("InternalFailure", "The request could not be carried out, for a fault of the broker.")
        return AwsError("ServiceUnavailable", str(error))
