"""Who has to log in is answered nothing else before; logins go step by step, end, expire, and are repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient

from tests.unit.kafka.test_session import Client
from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerSettings, LoginSettings
from trunkline.clock import ManualClock
from trunkline.log.memory.store import MemoryStore
from trunkline.protocols.kafka.apis import Request
from trunkline.protocols.kafka.codec import DecodeError, decode_response, encode_request
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse
from trunkline.protocols.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from trunkline.protocols.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trunkline.security.users import User

PLAIN = b"\0alice\0wonderland"
Scenario = Callable[[Client, BrokerCore, ManualClock], Awaitable[None]]


def run(scenario: Scenario, *, required: bool = True, max_reauth_ms: int = 0) -> None:
    async def work() -> None:
        clock = ManualClock()
        logins = LoginSettings(required=required, max_reauth_ms=max_reauth_ms)
        broker = BrokerCore(MemoryStore(), clock=clock, settings=BrokerSettings(logins=logins), with_messaging=False)
        await broker.start()
        broker.listeners["kafka"] = ("127.0.0.1", 9092)
        broker.users.put_user(ALICE)
        broker.users.put_user(BOB)
        client = Client(broker)
        try:
            await scenario(client, broker, clock)
        finally:
            client.session.lost()
            await broker.close()

    asyncio.run(work())


ALICE = User("alice").with_password(b"wonderland")
BOB = User("bob").with_password(b"builder")


def feed(client: Client, *requests: tuple[Request, int]) -> None:
    """As from a socket, all in one read."""
    frames = b"".join(b"".join(encode_request(request, version, 7, "test")) for request, version in requests)
    client.session.read(memoryview(frames))


async def handshake(client: Client, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
    feed(client, (SaslHandshakeRequest(mechanism=mechanism), version))
    await client.until(lambda: bool(client.sent))
    return decode_response(SaslHandshakeResponse, memoryview(client.sent.pop(0))[4:], version, 7)


async def step(client: Client, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
    feed(client, (SaslAuthenticateRequest(auth_bytes=token), version))
    await client.until(lambda: bool(client.sent))
    return decode_response(SaslAuthenticateResponse, memoryview(client.sent.pop(0))[4:], version, 7)


async def is_served(client: Client) -> bool:
    feed(client, (MetadataRequest(topics=[]), 9))
    await client.until(lambda: bool(client.sent) or client.closed)
    if client.closed:
        return False
    decode_response(MetadataResponse, memoryview(client.sent.pop(0))[4:], 9, 7)
    return True


def test_what_the_broker_speaks_is_told_and_nothing_else() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        feed(client, (ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3))
        await client.until(lambda: bool(client.sent))
        decode_response(ApiVersionsResponse, memoryview(client.sent.pop())[4:], 3, 7)
        assert not await is_served(client)

    run(scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain(version: int) -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        answer = await handshake(client, "PLAIN")
        assert answer.error_code == 0
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        done = await step(client, PLAIN, version)
        assert (done.error_code, done.auth_bytes, done.session_lifetime_ms) == (0, b"", 0)
        assert client.session.authentication.principal.name == "alice"
        assert await is_served(client)

    run(scenario)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        await handshake(client, mechanism)
        scram = ScramClient([mechanism], "alice", "wonderland")
        scram.set_server_first(bytes((await step(client, scram.get_client_first().encode())).auth_bytes).decode())
        assert not client.session.authentication.known
        scram.set_server_final(bytes((await step(client, scram.get_client_final().encode())).auth_bytes).decode())
        assert await is_served(client)

    run(scenario)


def test_bare_tokens() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        assert (await handshake(client, "PLAIN", version=0)).error_code == 0
        client.session.read(memoryview(len(PLAIN).to_bytes(4, "big") + PLAIN))
        await client.until(lambda: bool(client.sent))
        assert client.sent.pop() == b"\0\0\0\0"
        assert await is_served(client)

    run(scenario)


@pytest.mark.parametrize("version", [0, 1])
def test_a_wrong_password_is_told_and_ends_the_connection(version: int) -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        await handshake(client, "PLAIN", version)
        if version == 0:
            client.session.read(memoryview(b"\0\0\0\x0b\0alice\0oops"))
            await client.until(lambda: client.closed)
            assert not client.sent
        else:
            answer = await step(client, b"\0alice\0oops")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "Authentication failed: Invalid username or password"
            assert client.closed

    run(scenario)


@pytest.mark.parametrize("password", ["wonderland", "oops"])
def test_what_is_sent_behind_a_login_waits_for_it(password: str) -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        await handshake(client, "PLAIN")
        create = CreateTopicsRequest(
            topics=[CreatableTopic(name="behind", num_partitions=1, replication_factor=1)], timeout_ms=1000
        )
        feed(client, (SaslAuthenticateRequest(auth_bytes=f"\0alice\0{password}".encode()), 2), (create, 5))
        assert broker.topic("behind") is None
        await client.until(lambda: client.closed or len(client.sent) == 2)
        assert (broker.topic("behind") is not None) is (password == "wonderland")

    run(scenario)


def test_steps_out_of_order() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        assert (await handshake(client, "GSSAPI")).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert (await handshake(client, "PLAIN")).error_code == 0
        assert (await handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await step(client, PLAIN)
        answer = await step(client, PLAIN)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.closed

    run(scenario)


def test_a_login_expires_and_can_be_repeated_before() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        await handshake(client, "PLAIN")
        assert (await step(client, PLAIN)).session_lifetime_ms == 1_000
        clock.advance(900)
        assert await is_served(client)
        assert (await handshake(client, "PLAIN")).error_code == 0
        assert (await step(client, PLAIN)).error_code == 0
        clock.advance(900)
        assert await is_served(client)
        clock.advance(200)
        assert not await is_served(client)

    run(scenario, max_reauth_ms=1_000)


def test_a_login_is_repeated_as_the_same_user_by_the_same_mechanism() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        await handshake(client, "PLAIN")
        await step(client, PLAIN)
        assert (await handshake(client, "SCRAM-SHA-256")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await handshake(client, "PLAIN")
        answer = await step(client, b"\0bob\0builder")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.closed

    run(scenario)


def test_large_requests_wait_for_the_login() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        client.session.read(memoryview((600 * 1024).to_bytes(4, "big") + b"x"))
        assert client.closed

    run(scenario)


def test_who_need_not_log_in_may() -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        assert client.session.authentication.principal.administrator, "from this machine"
        assert await is_served(client)
        await handshake(client, "PLAIN")
        await step(client, PLAIN)
        assert not client.session.authentication.principal.administrator
        assert await is_served(client)

    run(scenario, required=False)


FRAMES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "x"]).flatmap(
        lambda mechanism: st.integers(0, 1).map(
            lambda version: b"".join(encode_request(SaslHandshakeRequest(mechanism=mechanism), version, 7, "t"))[4:]
        )
    ),
    st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="n=,rcsipalice\0", max_size=40).map(str.encode),
        st.sampled_from([b"n,,n=alice,r=abc", b"c=biws,r=abc,p=AAAA", b"\0alice\0x", b"n,,\1auth=Bearer a.b.c\1\1"]),
    ).map(lambda token: b"".join(encode_request(SaslAuthenticateRequest(auth_bytes=token), 2, 7, "t"))[4:]),
    st.just(b"".join(encode_request(MetadataRequest(topics=[]), 9, 7, "t"))[4:]),
)


@settings(max_examples=60)
@given(st.lists(FRAMES, max_size=6))
def test_no_handshake_lets_anybody_in_without_a_password(frames: list[bytes]) -> None:
    async def scenario(client: Client, broker: BrokerCore, clock: ManualClock) -> None:
        for frame in frames:
            if client.closed:
                break
            with contextlib.suppress(DecodeError):
                client.session.read(memoryview(len(frame).to_bytes(4, "big") + frame))
            async with asyncio.timeout(20):
                while client.session.inflight and not client.closed:
                    await asyncio.sleep(0.001)
        assert not client.session.authentication.known
        assert not any(isinstance(each, dict) for each in client.sent)

    run(scenario)
