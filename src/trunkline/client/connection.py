"""One connection to a broker: a socket, the versions that both sides know, one request at a time or a few in flight.

On opening, ApiVersions is asked in the newest form that we know; a broker too old for it answers UNSUPPORTED_VERSION in
version 0 with what it does know, and is asked again. Every later request is sent in the highest version that both sides
support, or lower where the caller says so (`max_version`), and the response must carry its correlation id.

After any failure (time-out, closed socket, a response that does not decode) the stream's state is unknown, so the
connection is closed and never used again. Limits: `MAX_RESPONSE_BYTES` for one response.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from trunkline.client.errors import (
    CONNECTION_FAILED,
    DISCONNECTED,
    NOT_LET_IN,
    OTHER_PROTOCOL,
    TIMED_OUT,
    ClientError,
    check,
)
from trunkline.client.login import NOBODY, PLAIN, SCRAM, Login
from trunkline.protocols.kafka.apis import APIS, ApiKey
from trunkline.protocols.kafka.codec import DecodeError, decode_response, encode_request
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from trunkline.protocols.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trunkline.protocols.kafka.wire import Message
from trunkline.version import VERSION

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
DEFAULT_PORT = 9092
_LENGTH = struct.Struct(">i")

R = TypeVar("R", bound=Message)


class _AnotherMechanism(Exception):
    """The broker does not have the one that we would like best; Apache Kafka hangs up when it says so."""

    def __init__(self, login: Login) -> None:
        super().__init__()
        self.login = login


class Submitted(NamedTuple):
    """A request that was sent and not answered yet."""

    correlation_id: int
    version: int


class KafkaConnection:
    def __init__(
        self, host: str, port: int, *, client_id: str = "trunkline", timeout_ms: int = 30_000, login: Login = NOBODY
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self._login = login
        self.versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self) -> None:
        try:
            self._socket = socket.create_connection((self.host, self.port), self.timeout_ms / 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            raise ClientError(CONNECTION_FAILED, f"no answer from {self.address}") from None
        except OSError as error:
            raise ClientError(
                CONNECTION_FAILED, f"cannot connect to {self.address}: {error.strerror or error}"
            ) from None
        if self._login.tls is not None:
            self._socket = self._login.tls.wrap(self._socket, self.host)
        try:
            self._negotiate()
            if self._login.user is not None:
                self._log_in(self._login.user)
        except _AnotherMechanism as other:
            self.close()
            self._login = other.login
            self.open()
        except ClientError as error:
            self.close()
            raise error.in_handshake("a Kafka", "--bootstrap HOST:PORT") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def supports(self, api: ApiKey) -> bool:
        return self._common(api) is not None

    def version_for(self, api: ApiKey, max_version: int | None = None) -> int:
        """The highest version that both sides know, or UNSUPPORTED_VERSION."""
        common = self._common(api)
        version = None if common is None else min(common[1], common[1] if max_version is None else max_version)
        if common is None or version is None or version < common[0]:
            raise ClientError("UNSUPPORTED_VERSION", f"{self.address} does not support {APIS[api].name} as we speak it")
        return version

    def _common(self, api: ApiKey) -> tuple[int, int] | None:
        theirs, ours = self.versions.get(api), APIS[api]
        if theirs is None:
            return None
        low, high = max(theirs[0], ours.min_version), min(theirs[1], ours.max_version)
        return (low, high) if low <= high else None

    def request(
        self, request: Message, response_type: type[R], *, max_version: int | None = None, timeout_ms: int | None = None
    ) -> R:
        """Send and wait for the response."""
        version = self.version_for(ApiKey(request.API_KEY), max_version)
        return self._exchange(request, response_type, version, timeout_ms or self.timeout_ms)

    def post(self, request: Message, *, max_version: int | None = None) -> None:
        """Send a request that has no response: Produce with acks=0."""
        self._send(request, self.version_for(ApiKey(request.API_KEY), max_version))

    def submit(self, request: Message, *, max_version: int | None = None) -> Submitted:
        """Send without waiting. Answers are to be collected in the order of submission, before anything else is asked."""
        version = self.version_for(ApiKey(request.API_KEY), max_version)
        return Submitted(self._send(request, version), version)

    def collect(self, submitted: Submitted, response_type: type[R], *, timeout_ms: int | None = None) -> R:
        """The answer to the oldest request that was submitted and not collected."""
        try:
            frame = self._receive(timeout_ms or self.timeout_ms)
            return decode_response(response_type, frame, submitted.version, submitted.correlation_id)
        except DecodeError as error:
            raise self._broken(f"{self.address} answered what we do not understand: {error}") from error

    def _exchange(self, request: Message, response_type: type[R], version: int, timeout_ms: int) -> R:
        try:
            correlation_id = self._send(request, version)
            return decode_response(response_type, self._receive(timeout_ms), version, correlation_id)
        except DecodeError as error:
            raise self._broken(f"{self.address} answered what we do not understand: {error}") from error
        except KeyboardInterrupt:
            # The answer is still to come: nothing else may be asked on this connection.
            self.close()
            raise

    def _send(self, request: Message, version: int) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        buffers: Sequence[bytes | bytearray | memoryview] = encode_request(
            request, version, self._correlation_id, self.client_id
        )
        sock = self._require_socket()
        try:
            sock.settimeout(self.timeout_ms / 1000)
            for buffer in buffers:
                sock.sendall(buffer)
        except TimeoutError:
            raise self._broken(f"{self.address} did not take our request", TIMED_OUT) from None
        except OSError as error:
            raise self._broken(f"{self.address} closed the connection: {error.strerror or error}") from None
        return self._correlation_id

    def _receive(self, timeout_ms: int) -> memoryview:
        self._require_socket().settimeout(timeout_ms / 1000)
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if not _LENGTH.size <= size <= MAX_RESPONSE_BYTES:
            raise self._broken(f"{self.address} announced a response of {size} bytes", OTHER_PROTOCOL)
        return memoryview(self._read(size))

    def _read(self, size: int) -> bytearray:
        sock = self._require_socket()
        data = bytearray(size)
        view, at = memoryview(data), 0
        try:
            while at < size:
                count = sock.recv_into(view[at:])
                if count == 0:
                    raise self._broken(f"{self.address} closed the connection")
                at += count
        except TimeoutError:
            raise self._broken(f"no answer from {self.address} in time", TIMED_OUT) from None
        except OSError as error:
            raise self._broken(f"lost the connection to {self.address}: {error.strerror or error}") from None
        return data

    def _require_socket(self) -> socket.socket:
        if self._socket is None:
            raise ClientError(DISCONNECTED, f"the connection to {self.address} is closed")
        return self._socket

    def _broken(self, message: str, name: str = DISCONNECTED) -> ClientError:
        self.close()
        return ClientError(name, message)

    def _negotiate(self) -> None:
        request = ApiVersionsRequest(client_software_name="trunkline", client_software_version=VERSION)
        correlation_id = self._send(request, APIS[ApiKey.API_VERSIONS].max_version)
        frame = self._receive(self.timeout_ms)
        response = self._read_versions(frame, APIS[ApiKey.API_VERSIONS].max_version, correlation_id)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = [item for item in response.api_keys if item.api_key == ApiKey.API_VERSIONS]
            response = self._exchange(
                request, ApiVersionsResponse, known[0].max_version if known else 0, self.timeout_ms
            )
        check(response.error_code, self.address)
        self.versions = {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}

    def _log_in(self, user: str) -> None:
        login = self._login
        mechanism = login.wanted[0]
        answer = self.request(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise _AnotherMechanism(login.with_one_of(answer.mechanisms))
        check(answer.error_code, self.address)
        if mechanism == PLAIN:
            self._token(b"\0" + user.encode() + b"\0" + login.password.encode())
            return
        if mechanism not in SCRAM:
            raise ClientError(NOT_LET_IN, f"the mechanism {mechanism} is none of {', '.join((PLAIN, *SCRAM))}")
        from scramp import ScramClient, ScramException

        try:
            scram = ScramClient([mechanism], user, login.password)
            scram.set_server_first(self._token(scram.get_client_first().encode()).decode())
            scram.set_server_final(self._token(scram.get_client_final().encode()).decode())
        except (ScramException, ValueError) as error:
            raise ClientError(NOT_LET_IN, f"{self.address} does not know the password either: {error}") from None

    def _token(self, token: bytes) -> bytes:
        answer = self.request(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        if answer.error_code:
            hint = "the user or the password is wrong; see --user and --password-file"
            raise ClientError(NOT_LET_IN, f"{self.address}: {answer.error_message or 'login refused'}", hint)
        return bytes(answer.auth_bytes)

    def _read_versions(self, frame: memoryview, version: int, correlation_id: int) -> ApiVersionsResponse:
        # A refusal comes in version 0 whatever was asked; its error code is the first field in every version.
        too_new = len(frame) >= 6 and int.from_bytes(frame[4:6], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
        try:
            return decode_response(ApiVersionsResponse, frame, 0 if too_new else version, correlation_id)
        except DecodeError as error:
            raise self._broken(f"{self.address} is not a Kafka listener: {error}", OTHER_PROTOCOL) from error


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """`host:port,[::1]:port,host` as pairs; the port defaults to Kafka's."""
    found = []
    for item in filter(None, (part.strip() for part in bootstrap.split(","))):
        host, colon, port = item.rpartition(":")
        if not colon or (item.startswith("[") and item.endswith("]")) or (":" in host and not host.startswith("[")):
            host, port = item, str(DEFAULT_PORT)
        if not port.isdecimal() or not 1 <= int(port) <= 65535 or not host.strip("[]"):
            raise ClientError(
                CONNECTION_FAILED, f"{item!r} is not an address", "write HOST:PORT, for example 127.0.0.1:9092"
            )
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ClientError(CONNECTION_FAILED, "no broker address is given", "name one with --bootstrap HOST:PORT")
    return found
