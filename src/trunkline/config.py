"""Settings: where they come from, and what each one means.

`Config` is the one table of settings: a field per setting, with its default, its reader and a sentence of
documentation. A setting has one name everywhere: `kafka_port` in TOML, `--kafka-port` as a flag, `TRUNKLINE_KAFKA_PORT`
in the environment. Later sources win:

    default  <  TOML file  <  environment  <  flag

The file is the one named by `--config` (or `TRUNKLINE_CONFIG`), else `./trunkline.toml`, else
`$XDG_CONFIG_HOME/trunkline/config.toml`; a named file must exist, the others may be absent. Its `[topic]` table holds
the broker's defaults for topic settings, by Kafka's names (`"retention.ms" = 86400000`); in the environment these are
`TRUNKLINE_TOPIC_RETENTION_MS`.

A key in a file that is no setting is an error, since it is nearly always a misspelling. An environment variable that
is no setting is a warning (`Config.warnings`), since it may be meant for something else; those that container platforms
put there by themselves, such as `TRUNKLINE_SERVICE_HOST`, are left alone.

`Config.origins` says for each setting which source it came from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar, cast

from trunkline.log.config import SETTINGS as TOPIC_SETTINGS
from trunkline.log.config import check_setting
from trunkline.log.errors import InvalidConfig

ENV_PREFIX = "TRUNKLINE_"
LOCAL_FILE = "trunkline.toml"
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_CONFIG_FILE_BYTES = 1 << 20
# Variables of ours that are no settings, by their name without the prefix; the last two are the tests'.
_OTHER_VARIABLES = frozenset({"CONFIG", "PASSWORD", "NEW_PASSWORD", "PURE", "PIPELINES", "SCALE", "CRASH_SEED"})
# What Kubernetes and Docker links tell every container about a service that is called trunkline.
_SERVICE_VARIABLE = re.compile(
    r"(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?|NAME|ENV_\w+)"
)

T = TypeVar("T")
Reader = Callable[[object], T]


class ConfigError(ValueError):
    """A setting is unknown or has a value that it does not take. The text names the source and what to do."""

    def __init__(self, message: str, *, from_flag: bool = False) -> None:
        super().__init__(message)
        self.from_flag = from_flag


# Readers: turn what a source gave (TOML value or text) into the setting's type, or raise ValueError saying what it takes.


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError("must be text")
    return raw


def _optional_text(raw: object) -> str | None:
    return None if raw in {None, ""} else _text(raw)


def _path(raw: object) -> Path:
    return raw if isinstance(raw, Path) else Path(_text(raw)).expanduser()


def _optional_path(raw: object) -> Path | None:
    return None if raw in {None, ""} else _path(raw)


def _flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    found = words.get(raw.strip().lower()) if isinstance(raw, str) else None
    if found is None:
        raise ValueError("must be true or false")
    return found


def _whole(low: int, high: int) -> Reader[int]:
    def read(raw: object) -> int:
        complaint = f"must be a whole number from {low} to {high}"
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(complaint)
        try:
            value = int(raw)
        except ValueError:
            raise ValueError(complaint) from None
        if not low <= value <= high:
            raise ValueError(complaint)
        return value

    return read


def _port(raw: object) -> int | None:
    if raw is None or raw is False or (isinstance(raw, str) and raw.strip().lower() in {"off", ""}):
        return None
    try:
        return _whole(0, 65535)(raw)
    except ValueError:
        raise ValueError("must be a port from 1 to 65535, 0 for a free one, or off") from None


def _one_of(*words: str) -> Reader[str]:
    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return raw.lower()

    return read


def _setting(default: T, read: Reader[T], doc: str) -> T:
    return field(default=default, metadata={"read": read, "doc": doc})


_INT_MAX = 2**31 - 1
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of a broker and of the command line."""

    # fmt: off
    data: Path = _setting(Path("trunkline-data"), _path, "Directory that holds the log.")  # noqa: RUF009 (`_setting` is `field`)
    host: str = _setting("127.0.0.1", _text, "Address that the listeners bind to.")
    kafka_port: int | None = _setting(cast("int | None", 9092), _port, "Port for Kafka clients; 0 takes a free one, off leaves the listener out.")
    amqp_port: int | None = _setting(cast("int | None", 5672), _port, "Port for AMQP 0-9-1 clients; 0 takes a free one, off leaves the listener out.")
    mqtt_port: int | None = _setting(cast("int | None", 1883), _port, "Port for MQTT clients; 0 takes a free one, off leaves the listener out.")
    mqtt_ws_port: int | None = _setting(None, _port, "Port for MQTT clients over WebSocket; 0 takes a free one, off leaves the listener out.")
    stomp_port: int | None = _setting(cast("int | None", 61613), _port, "Port for STOMP clients; 0 takes a free one, off leaves the listener out.")
    stomp_ws_port: int | None = _setting(None, _port, "Port for STOMP clients over WebSocket; 0 takes a free one, off leaves the listener out.")
    http_port: int | None = _setting(cast("int | None", 15672), _port, "Port for the page, the HTTP API and metrics; 0 takes a free one, off leaves the listener out.")
    aws_port: int | None = _setting(cast("int | None", 4566), _port, "Port for clients of SQS and SNS; 0 takes a free one, off leaves the listener out.")
    kafka_tls_port: int | None = _setting(cast("int | None", 9093), _port, "Port for Kafka clients over TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    amqp_tls_port: int | None = _setting(cast("int | None", 5671), _port, "Port for AMQP 0-9-1 clients over TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    mqtt_tls_port: int | None = _setting(cast("int | None", 8883), _port, "Port for MQTT clients over TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    mqtt_wss_port: int | None = _setting(None, _port, "Port for MQTT clients over WebSocket and TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    stomp_tls_port: int | None = _setting(cast("int | None", 61614), _port, "Port for STOMP clients over TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    stomp_wss_port: int | None = _setting(None, _port, "Port for STOMP clients over WebSocket and TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    aws_tls_port: int | None = _setting(None, _port, "Port for clients of SQS and SNS over TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    https_port: int | None = _setting(cast("int | None", 15671), _port, "Port for the page, the HTTP API and metrics over TLS, if tls_certificate is set; 0 takes a free one, off leaves the listener out.")
    advertised_host: str | None = _setting(None, _optional_text, "Host name that clients are told to connect to; if empty, the address that their connection came in on.")
    ready_file: Path | None = _setting(None, _optional_path, "File to write, as JSON, once every listener accepts.")  # noqa: RUF009
    log_format: str = _setting("text", _one_of("text", "json"), "How the log is written: text for people, json for programs, an object a line.")
    log_level: str = _setting("info", _one_of(*LOG_LEVELS), "Least serious message to log: debug, info, warning or error.")
    node_id: int = _setting(1, _whole(0, _INT_MAX), "This broker's id in cluster metadata.")
    bootstrap: str | None = _setting(None, _optional_text, "Broker that the command line talks to; by default host and kafka_port.")

    user: str | None = _setting(None, _optional_text, "User that the command line logs in as.")
    password_file: Path | None = _setting(None, _optional_path, "File whose first line is that user's password; the environment may have it as TRUNKLINE_PASSWORD instead.")  # noqa: RUF009
    ca: str | None = _setting(None, _optional_text, "PEM file with the CAs that the command line believes, which makes it speak TLS; system for this machine's own.")
    cert: Path | None = _setting(None, _optional_path, "PEM file with the command line's own certificate.")  # noqa: RUF009
    cert_key: Path | None = _setting(None, _optional_path, "PEM file with the private key of cert, if it is not in the same file.")  # noqa: RUF009

    auto_create_topics: bool = _setting(True, _flag, "Create a topic when a client first names it.")
    num_partitions: int = _setting(1, _whole(1, 100_000), "Partitions of a topic that is created without saying how many.")

    max_connections: int = _setting(10_000, _whole(1, 1_000_000), "Connections at a time; more are closed at once.")
    min_free_bytes: int = _setting(52_428_800, _whole(0, 2**63 - 1), "Free disk space below which publishers of AMQP and MQTT messages must wait; 0 never.")
    max_message_bytes: int = _setting(134_217_728, _whole(1024, 536_870_912), "Largest AMQP message; a larger one closes its channel.")
    max_idle_ms: int = _setting(600_000, _whole(1_000, _INT_MAX), "How long a connection may be silent before it is closed.")
    max_request_bytes: int = _setting(104_857_600, _whole(1024, _INT_MAX), "Largest request; a larger one closes its connection.")
    max_request_ms: int = _setting(120_000, _whole(1_000, _INT_MAX), "How long a request may take from its first byte to its last; a slower one closes its connection.")
    max_input_bytes: int = _setting(536_870_912, _whole(1 << 20, 2**63 - 1), "What all clients together may have begun to send and not finished; beyond it the connections that hold most are closed. Always as much as one request or message may have.")
    max_in_flight_requests: int = _setting(100, _whole(1, 100_000), "Requests of one connection that are read ahead of their responses.")
    max_batch_records: int = _setting(500_000, _whole(1, _INT_MAX), "Records of one batch; a larger one is refused (INVALID_RECORD), and passed over where the log holds it already.")
    fetch_max_bytes: int = _setting(57_671_680, _whole(1024, _INT_MAX), "Largest response to one fetch, whatever the client asks for.")

    authentication: str = _setting("auto", _one_of("auto", "optional", "required"), "Whether clients must log in; optional lets strangers in, who may administer the broker from this machine; auto is optional as long as the listeners bind to loopback, or insecure is set, and required otherwise.")
    insecure: bool = _setting(False, _flag, "Start on another address than loopback though nobody has to log in.")
    tls_certificate: Path | None = _setting(None, _optional_path, "PEM file with the broker's certificate and those that lead to its CA; turns the TLS listeners on.")  # noqa: RUF009
    tls_key: Path | None = _setting(None, _optional_path, "PEM file with the certificate's private key, if it is not in the same file.")  # noqa: RUF009
    tls_key_password_file: Path | None = _setting(None, _optional_path, "File whose first line is the password of the private key.")  # noqa: RUF009
    tls_client_ca: Path | None = _setting(None, _optional_path, "PEM file with the CAs of client certificates.")  # noqa: RUF009
    tls_client_auth: str = _setting("none", _one_of("none", "requested", "required"), "Whether TLS clients are asked for a certificate: none, requested or required.")
    tls_min_version: str = _setting("1.2", _one_of("1.2", "1.3"), "Oldest version of TLS that is spoken: 1.2 or 1.3.")
    tls_principal_rules: str = _setting("DEFAULT", _text, "How a client certificate's distinguished name becomes a user's name, as Kafka's ssl.principal.mapping.rules.")
    connections_max_reauth_ms: int = _setting(0, _whole(0, _INT_MAX), "How long a Kafka client's SASL login is good for, before it has to log in again on the same connection; 0 for ever.")
    oauth_jwks: str | None = _setting(None, _optional_text, "File or URL of the JSON Web Key Set whose tokens are taken: by Kafka's OAUTHBEARER, and as passwords of AMQP and MQTT.")
    oauth_issuer: str | None = _setting(None, _optional_text, "Issuer that a token must name.")
    oauth_audience: str | None = _setting(None, _optional_text, "Audience that a token must name.")
    oauth_principal_claim: str = _setting("sub", _text, "Claim of a token that is the user's name.")
    super_users: str | None = _setting(None, _optional_text, "Users who stand above all rules, as Kafka writes them: User:alice;User:bob.")
    allow_everyone_if_no_acl: bool = _setting(True, _flag, "Allow everybody what no rule and no permission is about, as Kafka's allow.everyone.if.no.acl.found.")
    audit_retention_ms: int = _setting(90 * _DAY_MS, _whole(-1, 2**63 - 1), "How long the audit trail keeps logins, refusals and administrative changes; -1 for ever.")
    audit_retention_bytes: int = _setting(268_435_456, _whole(-1, 2**63 - 1), "Size of the audit trail; beyond it the oldest entries go; -1 for no limit.")

    cleanup_interval_ms: int = _setting(30_000, _whole(10, _INT_MAX), "How often retention and compaction look for work.")
    io_uring: bool = _setting(True, _flag, "Sync files through Linux's io_uring, where the kernel has it, instead of a thread.")

    mqtt_topic: str = _setting("mqtt", _text, "Log topic of MQTT publications that no rule of the [mqtt] table names; off does not store them.")
    mqtt_anonymous: bool = _setting(True, _flag, "Let MQTT clients in without a user name and password.")
    mqtt_max_connections: int = _setting(20_000, _whole(1, 1_000_000), "MQTT connections at a time; more are closed at once.")
    mqtt_max_packet_bytes: int = _setting(16_777_216, _whole(128, 268_435_460), "Largest MQTT packet; a larger one closes its connection.")
    mqtt_receive_maximum: int = _setting(1_000, _whole(1, 65_535), "Unacknowledged QoS 1 and 2 publications that one MQTT client may have sent.")
    mqtt_max_inflight: int = _setting(16_384, _whole(1, 65_535), "Unacknowledged QoS 1 and 2 messages sent to one MQTT client; sessions that are kept have at most 256.")
    mqtt_max_queued: int = _setting(1_000, _whole(1, 1_000_000), "Messages of topics that are not stored, kept for an MQTT client whose window is full; more are dropped.")
    mqtt_max_sessions: int = _setting(1_000_000, _whole(1, _INT_MAX), "MQTT sessions, with or without a connection.")
    mqtt_max_subscriptions: int = _setting(100_000, _whole(1, 10_000_000), "Subscriptions of one MQTT session.")
    mqtt_max_retained: int = _setting(1_000_000, _whole(0, _INT_MAX), "Retained MQTT messages.")
    mqtt_max_topic_levels: int = _setting(128, _whole(1, 128), "Levels of an MQTT topic name or filter.")
    mqtt_max_keep_alive_s: int = _setting(65_535, _whole(1, 65_535), "Longest keep-alive of MQTT 5.0 clients; who asks for more, or for none, is given this.")
    mqtt_refused_filters: str | None = _setting(None, _optional_text, "Topic filters that MQTT clients may not subscribe to, separated by commas; one also refuses those that it covers.")
    mqtt_sys_interval_ms: int = _setting(10_000, _whole(0, _INT_MAX), "How often the topics under $SYS are brought up to date; 0 for never.")

    aws_anonymous: bool = _setting(True, _flag, "Let clients of SQS and SNS on this machine in with any credentials; others sign with a user's key always.")
    aws_max_message_bytes: int = _setting(1_048_576, _whole(1_024, 1_048_576), "Largest SQS message with its attributes; 262144 is what SQS had before 2025.")

    group_min_session_timeout_ms: int = _setting(6_000, _whole(1, _INT_MAX), "Shortest session timeout that a group member may ask for.")
    group_max_session_timeout_ms: int = _setting(1_800_000, _whole(1, _INT_MAX), "Longest session timeout that a group member may ask for.")
    group_initial_rebalance_delay_ms: int = _setting(0, _whole(0, _INT_MAX), "How long a new group waits for more members before its first assignment.")
    group_max_size: int = _setting(10_000, _whole(1, _INT_MAX), "Members of one group.")
    group_consumer_session_timeout_ms: int = _setting(45_000, _whole(1_000, _INT_MAX), "Session timeout of members that use the consumer protocol (KIP-848).")
    group_consumer_heartbeat_interval_ms: int = _setting(5_000, _whole(100, _INT_MAX), "Heartbeat interval of members that use the consumer protocol (KIP-848).")
    offsets_retention_ms: int = _setting(7 * _DAY_MS, _whole(1, 2**63 - 1), "How long the offsets of a group without members are kept.")
    transaction_max_timeout_ms: int = _setting(900_000, _whole(1, _INT_MAX), "Longest transaction timeout that a producer may ask for.")
    # fmt: on

    topic: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The broker's defaults for topic settings, where they differ from `trunkline.log.config.SETTINGS`."""

    mqtt: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """MQTT mapping rules: topic filter -> log topic (or `off`) and key template, in order; see `trunkline.broker.messaging.mapping`."""

    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)
    """Setting (or `topic.<name>`) -> "default", "file PATH", "env VAR" or "flag"."""

    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What was found beside the settings and may have been meant as one; a sentence each."""

    def __post_init__(self) -> None:
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError("group_min_session_timeout_ms must not be above group_max_session_timeout_ms")
        if self.tls_certificate is None and (self.tls_key is not None or self.tls_client_ca is not None):
            raise ConfigError("tls_key and tls_client_ca are of no use without tls_certificate")
        for name, value in self.topic.items():
            try:
                check_setting(name, value)
            except InvalidConfig as error:
                raise ConfigError(f"topic.{name}: {error}") from None

    def client_bootstrap(self) -> str:
        """Where the command line finds the broker that this configuration describes."""
        if self.bootstrap is not None:
            return self.bootstrap
        wildcard = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
        host = wildcard.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        if self.ca is not None or self.cert is not None:
            return f"{host}:{self.kafka_tls_port or 9093}"
        return f"{host}:{self.kafka_port or 9092}"


class Setting(NamedTuple):
    """One row of the table: what `config show` and `config example` print."""

    name: str
    default: object
    read: Reader[object]
    doc: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        item.name: Setting(item.name, item.default, cast(Reader[object], item.metadata["read"]), str(item.metadata["doc"]))
        for item in fields(Config)
        if "read" in item.metadata
    }
)  # fmt: skip


def topic_env(name: str) -> str:
    return ENV_PREFIX + "TOPIC_" + name.upper().replace(".", "_")


@dataclass(slots=True)
class _Gathered:
    """Values from the sources read so far; a later source replaces what an earlier one said."""

    values: dict[str, object] = field(default_factory=dict)
    topic: dict[str, str] = field(default_factory=dict)
    mqtt: dict[str, tuple[str, str]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, raw: object, origin: str) -> None:
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"{origin}: {name} is not a setting{_nearest(name, [*SETTINGS, 'topic', 'mqtt'])}")
        try:
            self.values[name] = setting.read(raw)
        except ValueError as error:
            named = setting.flag if origin == "flag" else f"{origin}: {name}"
            raise ConfigError(f"{named} {error}, not {_shown(raw)}", from_flag=origin == "flag") from None
        self.origins[name] = origin

    def take_topic(self, name: str, raw: object, origin: str) -> None:
        if name not in TOPIC_SETTINGS:
            complaint = f"{_place(origin)}: {name} is not a topic setting{_nearest(name, list(TOPIC_SETTINGS))}"
            raise ConfigError(complaint, from_flag=origin == "flag")
        value = str(raw).lower() if isinstance(raw, bool) else str(raw)
        try:
            check_setting(name, value)
        except InvalidConfig as error:
            raise ConfigError(f"{_place(origin)}: {error}", from_flag=origin == "flag") from None
        self.topic[name] = value
        self.origins[f"topic.{name}"] = origin

    def take_mapping(self, topic_filter: str, raw: object, origin: str) -> None:
        """One rule of the `[mqtt]` table: a topic's name, or a table of `topic` and `key`."""
        table = raw if isinstance(raw, dict) else {"topic": raw}
        topic, key = table.get("topic"), table.get("key", "{topic}")
        if not isinstance(topic, str) or not isinstance(key, str) or not topic or table.keys() - {"topic", "key"}:
            example = '"sensors/#" = "readings" or "sensors/#" = { topic = "readings", key = "{2}" }'
            raise ConfigError(f"{origin}: mqtt.{topic_filter} must be like {example}")
        self.mqtt[topic_filter] = (topic, key)
        self.origins[f"mqtt.{topic_filter}"] = origin


def load(
    flags: Mapping[str, object] | None = None,
    *,
    topic_flags: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Config:
    """Read every source. A flag whose value is None was not given."""
    environ = os.environ if environ is None else environ
    found = _Gathered(origins=dict.fromkeys(SETTINGS, "default"))
    path = find_file(config_file, environ, directory)
    if path is not None:
        _take_file(found, path)
    for name, setting in SETTINGS.items():
        if setting.env in environ:
            found.take(name, environ[setting.env], f"env {setting.env}")
    for name in TOPIC_SETTINGS:
        if topic_env(name) in environ:
            found.take_topic(name, environ[topic_env(name)], f"env {topic_env(name)}")
    for name, raw in (flags or {}).items():
        if raw is not None:
            found.take(name, raw, "flag")
    for name, value in (topic_flags or {}).items():
        found.take_topic(name, value, "flag")
    # Each value was read by its own field's reader, so the types agree; mypy cannot see that through a mapping.
    make = cast(Callable[..., Config], Config)
    tables = {"topic": MappingProxyType(found.topic), "mqtt": MappingProxyType(found.mqtt)}
    origins = MappingProxyType(found.origins)
    return make(**found.values, **tables, origins=origins, warnings=tuple(_stray_variables(environ)))


def _stray_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that are no setting."""
    known = {setting.env for setting in SETTINGS.values()} | {topic_env(name) for name in TOPIC_SETTINGS}
    found = []
    for name in sorted(environ):
        word = name.removeprefix(ENV_PREFIX)
        if name == word or name in known or word in _OTHER_VARIABLES or _SERVICE_VARIABLE.fullmatch(word):
            continue
        near = _nearest(word, sorted(each.removeprefix(ENV_PREFIX) for each in known), ENV_PREFIX)
        found.append(f"{name} in the environment is not a setting{near}")
    return found


def find_file(config_file: Path | None, environ: Mapping[str, str], directory: Path | None = None) -> Path | None:
    named = config_file or (Path(environ[ENV_PREFIX + "CONFIG"]) if environ.get(ENV_PREFIX + "CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"{named}: there is no such configuration file")
        return named
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")
    candidates = [(directory or Path()) / LOCAL_FILE, home / "trunkline" / "config.toml"]
    return next((path for path in candidates if path.is_file()), None)


def _take_file(found: _Gathered, path: Path) -> None:
    import tomllib

    origin = f"file {path}"
    try:
        if path.stat().st_size > MAX_CONFIG_FILE_BYTES:
            raise ConfigError(f"{origin}: larger than {MAX_CONFIG_FILE_BYTES} bytes")
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{origin}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from None
    for name, raw in table.items():
        if name == "topic":
            if not isinstance(raw, dict):
                raise ConfigError(f"{origin}: topic must be a table of topic settings")
            for topic_name, value in _flatten(raw):
                found.take_topic(topic_name, value, origin)
        elif name == "mqtt":
            if not isinstance(raw, dict):
                raise ConfigError(f"{origin}: mqtt must be a table of topic filters and log topics")
            for topic_filter, rule in raw.items():
                found.take_mapping(topic_filter, rule, origin)
        else:
            found.take(name, raw, origin)


def _place(origin: str) -> str:
    """Of a topic setting, as a person finds it."""
    return "--topic-config" if origin == "flag" else origin


def _flatten(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """TOML reads an unquoted `retention.ms = 1` as nested tables; both spellings mean the same here."""
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            found.append((prefix + name, ",".join(map(str, value))))
        else:
            found.append((prefix + name, value))
    return found


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else "; `trunkline config example` lists them all"


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 80 else text[:77] + "..."


def example() -> str:
    """A commented TOML file with every setting at its default."""
    lines = ["# Trunkline settings. Each line shows a default; remove the # to change it.", ""]
    for setting in SETTINGS.values():
        lines += [f"# {setting.doc}", f"#{setting.name} = {_toml(setting.default)}", ""]
    lines += [
        "# Where MQTT publications are stored, by topic filter; the first that matches decides. The rest goes to mqtt_topic.",
        "[mqtt]",
        '#   "sensors/#" = "readings"',
        '#   "plant/+/state" = { topic = "plants", key = "{2}" }',
        '#   "chat/#" = "off"',
        "",
    ]
    lines += ["# Defaults for topics that do not say otherwise.", "[topic]"]
    for topic_setting in TOPIC_SETTINGS.values():
        default = topic_setting.default
        bare = topic_setting.kind in {"int", "long", "double", "boolean"}
        lines += ["", f"# {topic_setting.doc}", f'#"{topic_setting.name}" = {default if bare else _toml(default)}']
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    text = "" if value is None else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
