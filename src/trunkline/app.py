"""A running broker: the store, the broker over it, and a listener per protocol.

Three ways to run the same thing: `serve` (the process behind `trunkline serve`), `async with Broker()` inside an
application's event loop, and `with run()` in a thread of its own for code that is not asynchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import shutil
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trunkline import listeners
from trunkline.broker.access import super_user_names
from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerLimits, BrokerSettings, LoginSettings
from trunkline.broker.transactions.coordinator import TransactionLimits
from trunkline.config import Config, ConfigError
from trunkline.cursors.stream import GroupLimits
from trunkline.log.decoding import DecodingLimits
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.limits import StoreLimits
from trunkline.log.store import LogStore
from trunkline.security.certificates import NONE as NO_CLIENT_AUTH
from trunkline.security.certificates import Certificates, InvalidCertificates, NameRules, TlsSettings
from trunkline.security.principal import is_loopback
from trunkline.security.tokens import TokenSettings
from trunkline.security.users import DEFAULT_USER, Accounts
from trunkline.selector import new_event_loop

logger = logging.getLogger(__name__)

_LARGE_BUFFER_BYTES = 32 * 1024 * 1024  # the most that glibc takes for M_MMAP_THRESHOLD
# Nearly all garbage here is freed by its reference count. The default of 700 makes a few messages in a hundred wait for a
# collection that finds nothing, and takes a third of the start with ten thousand queues.
_COLLECT_EACH_OBJECTS = 20_000
_SETTLE_S = 0.5
_LOOK_AT_CERTIFICATES_S = 5.0
# Kept free for what is opened for a moment: snapshots, checkpoints, directories, what the cleaner reads.
_WORKING_FILES = 48
StoreFactory = Callable[[Config, StoreLimits], LogStore]
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def embedded_store(config: Config, limits: StoreLimits) -> LogStore:
    return EmbeddedStore(config.data, defaults=config.topic, limits=limits)


def memory_store(config: Config, limits: StoreLimits) -> LogStore:
    """For brokers that keep nothing: their log is gone with them."""
    from trunkline.log.memory.store import MemoryStore

    return MemoryStore(defaults=config.topic)


class Unsafe(Exception):
    """The broker would let in whoever reaches it from other machines."""


def asks_everybody(config: Config) -> bool:
    """Whether clients must log in."""
    if config.authentication == "auto":
        return not config.insecure and not _for_this_machine(config.host)
    return config.authentication == "required"


def check_safe(config: Config, accounts: Accounts) -> None:
    """Raise Unsafe if other machines can reach the broker, and nobody could log in from there, or nobody has to."""
    if config.insecure or _for_this_machine(config.host):
        return
    if not asks_everybody(config):
        raise Unsafe(f"authentication is {config.authentication}, and {config.host or 'every address'} is not loopback")
    by_certificate = config.tls_client_ca is not None and config.tls_client_auth != NO_CLIENT_AUTH
    if (
        not by_certificate
        and config.oauth_jwks is None
        and not any(user.has_password and user.name != DEFAULT_USER for user in accounts.users.values())
    ):
        raise Unsafe(
            f"there is no user who could log in from another machine, and {config.host or 'every address'} is not loopback"
        )


def _for_this_machine(host: str) -> bool:
    """Whether a listener on this address is reached from this machine alone."""
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # the listener will say what is wrong with it
    return all(is_loopback(str(address[0])) for *_, address in found)


def _certificates(config: Config) -> Certificates | None:
    if config.tls_certificate is None:
        return None
    try:
        return Certificates(
            TlsSettings(
                config.tls_certificate,
                config.tls_key,
                config.tls_key_password_file,
                config.tls_client_ca,
                config.tls_client_auth,
                config.tls_min_version,
            )
        )
    except InvalidCertificates as error:
        raise ConfigError(f"TLS: {error}") from None


class Broker:
    """A real broker in this process: `async with Broker() as broker: connect to broker.bootstrap`.

    Without `data` it keeps its log in a temporary directory that goes away with it. Ports default to free ones.
    `store` makes the store that it runs on, of its settings and limits; the embedded one unless told.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        kafka_port: int | None = 0,
        amqp_port: int | None = 0,
        mqtt_port: int | None = 0,
        mqtt_ws_port: int | None = 0,
        stomp_port: int | None = 0,
        stomp_ws_port: int | None = 0,
        http_port: int | None = None,
        aws_port: int | None = 0,
        topic: Mapping[str, str] | None = None,
        config: Config | None = None,
        store: StoreFactory | None = None,
    ) -> None:
        if config is None:
            config = Config(
                host=host,
                kafka_port=kafka_port,
                amqp_port=amqp_port,
                mqtt_port=mqtt_port,
                mqtt_ws_port=mqtt_ws_port,
                stomp_port=stomp_port,
                stomp_ws_port=stomp_ws_port,
                http_port=http_port,
                aws_port=aws_port,
                topic=dict(topic or {}),
            )
        self._temporary = None
        if data is not None:
            config = replace(config, data=Path(data))
        elif config.data == Config().data:
            import tempfile  # imports much that a broker with a directory of its own does without

            self._temporary = Path(tempfile.mkdtemp(prefix="trunkline-"))
            config = replace(config, data=self._temporary)
        self.config = config
        self._new_store = embedded_store if store is None else store
        self._addresses: dict[str, str] = {}
        self._core: BrokerCore | None = None
        self._servers: dict[str, listeners.ProtocolServer] = {}  # by protocol
        self._certificates: Certificates | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    def from_config(cls, config: Config, store: StoreFactory | None = None) -> Self:
        return cls(config.data, config=config, store=store)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Listener name to `host:port`, for the listeners that are on."""
        return self._addresses

    def address(self, listener: str) -> str:
        return self._addresses[listener]

    @property
    def bootstrap(self) -> str:
        """What a Kafka client calls `bootstrap.servers`."""
        return self._addresses["kafka"]

    @property
    def data(self) -> Path:
        return self.config.data

    async def start(self) -> None:
        config = self.config
        self._certificates = _certificates(config)
        limits = StoreLimits(
            decoding=DecodingLimits(max_batch_records=config.max_batch_records),
            cleanup_interval_ms=config.cleanup_interval_ms,
            io_uring=config.io_uring,
        )
        settings = _settings(config, max_open_connections=_room_for_connections(limits))
        core = BrokerCore(
            self._new_store(config, limits),
            settings=settings,
            group_limits=_group_limits(config),
            transaction_limits=TransactionLimits(max_timeout_ms=config.transaction_max_timeout_ms),
            with_messaging=any(row.messaging for row, _ in listeners.wanted(config)),
        )
        try:
            await core.start()
            self._core = core
            check_safe(config, core.accounts)
            for row, wanted_port in listeners.wanted(config):
                server = self._servers.get(row.protocol)
                if server is None:
                    server = self._servers[row.protocol] = listeners.MAKERS[row.protocol](core, config)
                tls = self._certificates if row.tls else None
                host, port = await server.listen(config.host, wanted_port, row.name, tls=tls)
                core.listeners[row.name] = (config.advertised_host or "", port)
                self._addresses[row.name] = _local_address(host, port)
            if self._certificates is not None:
                self._watching = asyncio.create_task(self._watch_certificates(), name="certificates")
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the listeners, then the log, marking the shutdown as clean."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        while self._servers:
            _, server = self._servers.popitem()  # the last that was started is closed first
            await server.close()
        if self._core is not None:
            await self._core.close()
            self._core = None
        self._addresses.clear()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def reload_certificates(self, *, only_if_changed: bool = False) -> None:
        """Show the certificates that are in the files now to whoever connects from now on."""
        certificates = self._certificates
        if certificates is None:
            return
        try:
            if only_if_changed and not certificates.reload_if_changed():
                return
            if not only_if_changed:
                certificates.reload()
        except InvalidCertificates as error:
            logger.error("the certificates stay as they were: %s", error)
        else:
            logger.info("the certificates were read again")

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AT_CERTIFICATES_S)
            self.reload_certificates(only_if_changed=True)

    def complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For an event loop of the broker's own: what nobody caught is told once, then counted."""
        core, error = self._core, context.get("exception")
        if core is None:
            loop.default_exception_handler(context)
        else:
            core.complaints.add(f"uncaught {type(error).__name__}", "event loop", str(context["message"]), error=error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


@contextlib.contextmanager
def run(
    data: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    kafka_port: int | None = 0,
    amqp_port: int | None = 0,
    mqtt_port: int | None = 0,
    mqtt_ws_port: int | None = 0,
    stomp_port: int | None = 0,
    stomp_ws_port: int | None = 0,
    http_port: int | None = None,
    aws_port: int | None = 0,
    topic: Mapping[str, str] | None = None,
    config: Config | None = None,
    store: StoreFactory | None = None,
) -> Iterator[Broker]:
    """A real broker for code that is not asynchronous: it runs in a thread of its own."""
    broker = Broker(
        data,
        host=host,
        kafka_port=kafka_port,
        amqp_port=amqp_port,
        mqtt_port=mqtt_port,
        mqtt_ws_port=mqtt_ws_port,
        stomp_port=stomp_port,
        stomp_ws_port=stomp_ws_port,
        http_port=http_port,
        aws_port=aws_port,
        topic=topic,
        config=config,
        store=store,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="trunkline", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result()
        try:
            yield broker
        finally:
            asyncio.run_coroutine_threadsafe(broker.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def serve(
    config: Config,
    announce: Callable[[Mapping[str, str]], None] | None = None,
    *,
    store: StoreFactory | None = None,
) -> int:
    """Run until SIGINT or SIGTERM. `announce` is called once every listener accepts."""
    _allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(config, announce, store))
    return 0


async def _serve(
    config: Config, announce: Callable[[Mapping[str, str]], None] | None, store: StoreFactory | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    gc.set_threshold(_COLLECT_EACH_OBJECTS, 20, 20)
    async with Broker.from_config(config, store) as broker:
        if config.ready_file is not None:
            _write_ready_file(config.ready_file, broker.addresses)
        if announce is not None:
            announce(broker.addresses)
        loop.set_exception_handler(broker.complain)
        loop.add_signal_handler(signal.SIGHUP, broker.reload_certificates)
        settling = loop.call_later(_SETTLE_S, _settle)
        await stop.wait()
        settling.cancel()
        logger.info("shutting down")


def _local_address(host: str, port: int) -> str:
    """Where a listener is found from this machine."""
    host = _WILDCARDS.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _settle() -> None:
    """What pays in the long run only, and need not hold up the first clients."""
    _keep_freed_memory()
    # What start-up made lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()


def _write_ready_file(path: Path, addresses: Mapping[str, str]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps({**addresses, "pid": os.getpid()}) + "\n")
    partial.replace(path)


def _allow_many_files() -> None:
    """Raise the soft limit on open files to the hard one: connections and segments both need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Let glibc use read buffers again instead of returning each megabyte to the kernel.

    Its default maps every large buffer anew and the kernel clears it page by page: half the cost of a large fetch.
    """
    import ctypes

    m_trim_threshold, m_mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):  # another C library: its own habits
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, _LARGE_BUFFER_BYTES)
        libc.mallopt(m_trim_threshold, 2 * _LARGE_BUFFER_BYTES)


def _room_for_connections(limits: StoreLimits) -> int:
    """What the files that the process may open leave for connections: not those of the log, nor some to work with."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return BrokerLimits().max_open_connections
    return max(1, soft - limits.max_open_files - max(_WORKING_FILES, soft // 16))


def _settings(config: Config, *, max_open_connections: int) -> BrokerSettings:
    return BrokerSettings(
        node_id=config.node_id,
        auto_create_topics=config.auto_create_topics,
        num_partitions=config.num_partitions,
        topic_defaults=config.topic,
        audit_topic={
            "retention.ms": str(config.audit_retention_ms),
            "retention.bytes": str(config.audit_retention_bytes),
        },
        super_users=tuple(super_user_names(config.super_users or "")),
        allow_everyone_if_no_acl=config.allow_everyone_if_no_acl,
        mqtt_topics=_mqtt_topics(config),
        logins=_login_settings(config),
        limits=BrokerLimits(
            max_connections=config.max_connections,
            max_open_connections=max_open_connections,
            max_request_ms=config.max_request_ms,
            max_input_bytes=max(
                config.max_input_bytes, config.max_request_bytes, config.max_message_bytes, config.mqtt_max_packet_bytes
            ),
            max_idle_ms=config.max_idle_ms,
            max_request_bytes=config.max_request_bytes,
            max_in_flight_requests=config.max_in_flight_requests,
            fetch_max_bytes=config.fetch_max_bytes,
            min_free_bytes=config.min_free_bytes,
        ),
    )


def _mqtt_topics(config: Config) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Which MQTT topics each log topic has the messages of: what one may do to them is what one may do to it."""
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for topic_filter, (topic, _) in config.mqtt.items():
        if topic != "off":
            found[topic] = ((*found.get(topic, ((), ()))[0], topic_filter), ())
    if config.mqtt_topic != "off":
        own = found.get(config.mqtt_topic, ((), ()))[0]
        found[config.mqtt_topic] = ((*own, "#"), tuple(each for each in config.mqtt if each not in own))
    return found


def _login_settings(config: Config) -> LoginSettings:
    try:
        NameRules(config.tls_principal_rules)
    except InvalidCertificates as error:
        raise ConfigError(f"tls_principal_rules: {error}") from None
    tokens = None
    if config.oauth_jwks is not None:
        tokens = TokenSettings(
            config.oauth_jwks, config.oauth_issuer, config.oauth_audience, config.oauth_principal_claim
        )
    return LoginSettings(asks_everybody(config), config.tls_principal_rules, config.connections_max_reauth_ms, tokens)


def _group_limits(config: Config) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_members_per_group=config.group_max_size,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        offsets_retention_ms=config.offsets_retention_ms,
    )


@contextlib.asynccontextmanager
async def at_rest(config: Config) -> AsyncIterator[BrokerCore]:
    """The broker behind a data directory that no process serves: no listeners, for what is set up before the first start."""
    core = BrokerCore(embedded_store(config, StoreLimits(io_uring=config.io_uring)), settings=BrokerSettings())
    await core.start()
    try:
        yield core
    finally:
        await core.close()
