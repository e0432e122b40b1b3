"""Settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Settings of topics and of groups can be changed, and the levels of loggers (`config_resources`). The broker's own come
from its configuration file, environment and flags, and are shown read-only under Kafka's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trunkline.broker import guard
from trunkline.cursors.stream import GroupError
from trunkline.log.config import SETTINGS, Setting, TopicConfig, words_of
from trunkline.log.errors import InvalidConfig, LogError, UnknownTopicOrPartition
from trunkline.log.store import TopicInfo
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError, code_of
from trunkline.protocols.kafka.handlers.config_resources import (
    OP_APPEND,
    OP_DELETE,
    OP_SET,
    OP_SUBTRACT,
    TYPES,
    edit_group,
    edit_loggers,
    group_entries,
    logger_entries,
)
from trunkline.protocols.kafka.messages import alter_configs as full
from trunkline.protocols.kafka.messages import incremental_alter_configs as incremental
from trunkline.protocols.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from trunkline.protocols.kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from trunkline.security.rules import CLUSTER_NAME, Kind, Operation

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_LISTED = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
# What Kafka calls the broker-wide default of a topic setting, where it is not "log." and the same name.
_BROKER_NAMES = {
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "flush": "trunkline.flush",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
# What kafka-reassign-partitions sets on a broker and takes back.
_THROTTLES = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
# Settings that only topics have.
_OF_TOPICS_ONLY = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
)


def source_of(config: TopicConfig, name: str) -> int:
    if name in config.overrides:
        return SOURCE_TOPIC
    return SOURCE_STATIC_BROKER if name in config.defaults else SOURCE_DEFAULT


def broker_name(name: str) -> str:
    return _BROKER_NAMES.get(name, f"log.{name}")


async def describe_configs(context: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    for resource in request.resources:
        result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        response.results.append(result)
        try:
            entries = await _entries(context, resource, synonyms=request.include_synonyms)
            wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
            result.configs = [entry for entry in entries if wanted is None or entry.name in wanted]
        except (LogError, RefusedError) as error:
            result.error_code, result.error_message = code_of(error), str(error)
            continue
        if not request.include_documentation:
            for entry in result.configs:
                entry.documentation = None
    return response


async def _entries(
    context: Context, resource: DescribeConfigsResource, *, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    _check_resource(context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
    if resource.resource_type == TOPIC:
        config = _topic(context, resource.resource_name).config
        return [_topic_entry(config, setting, synonyms=synonyms) for setting in SETTINGS.values()]
    if resource.resource_type == BROKER:
        _check_broker(context, resource.resource_name)
        directories = [directory.path for directory in await context.broker.directories()]
        return list(_broker_entries(context, directories))
    if resource.resource_type == BROKER_LOGGER:
        return logger_entries(context, resource.resource_name)
    if resource.resource_type == GROUP:
        return group_entries(context, resource.resource_name, synonyms=synonyms)
    if resource.resource_type == CLIENT_METRICS:
        return []  # nothing is measured in clients
    raise RefusedError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings")


def _check_resource(context: Context, operation: Operation, resource_type: int, name: str) -> None:
    """Raise AccessDenied unless the client may do this to the settings; those of brokers are the cluster's."""
    if resource_type == TOPIC:
        context.check(operation, Kind.TOPIC, name)
    elif resource_type == GROUP:
        context.check(operation, Kind.GROUP, name)
    else:
        context.check_cluster(operation)


def _topic_entry(config: TopicConfig, setting: Setting, *, synonyms: bool) -> DescribeConfigsResourceResult:
    source = source_of(config, setting.name)
    entry = DescribeConfigsResourceResult(
        name=setting.name,
        value=config.value(setting.name),
        read_only=False,
        is_default=source != SOURCE_TOPIC,
        config_source=source,
        config_type=TYPES[setting.kind],
        documentation=setting.doc,
    )
    if synonyms:
        name = setting.name
        if name in config.overrides:
            entry.synonyms.append(DescribeConfigsSynonym(name=name, value=config.overrides[name], source=SOURCE_TOPIC))
        if name in config.defaults:
            entry.synonyms.append(
                DescribeConfigsSynonym(name=broker_name(name), value=config.defaults[name], source=SOURCE_STATIC_BROKER)
            )
        if name not in _OF_TOPICS_ONLY:
            entry.synonyms.append(
                DescribeConfigsSynonym(name=broker_name(name), value=setting.default, source=SOURCE_DEFAULT)
            )
    return entry


def _broker_entries(context: Context, directories: Sequence[str]) -> Iterator[DescribeConfigsResourceResult]:
    broker = context.broker
    host, port = context.address
    limits, groups, transactions = broker.limits, broker.groups.limits, broker.transactions.limits
    listener = f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}"
    rows = [
        ("advertised.listeners", "string", listener, "The address that clients are told."),
        ("listeners", "list", listener, "The address that this client has reached."),
        ("listener.security.protocol.map", "string", "PLAINTEXT:PLAINTEXT", "Every listener is without encryption."),
        ("inter.broker.listener.name", "string", "PLAINTEXT", "There is no other broker."),
        ("process.roles", "list", "broker,controller", "This process is the whole cluster."),
        ("auto.leader.rebalance.enable", "boolean", "false", "The one replica always leads."),
        ("connections.max.idle.ms", "long", str(limits.max_idle_ms), "Age of silence at which a connection is closed."),
        ("default.replication.factor", "int", "1", "Replicas of a topic that is created without saying how many."),
        ("delete.topic.enable", "boolean", "true", "Whether topics can be deleted."),
        ("group.consumer.heartbeat.interval.ms", "int", str(groups.consumer_heartbeat_interval_ms), "How often a member of a consumer group is to call."),
        ("group.consumer.max.size", "int", str(groups.max_members_per_group), "Members of a consumer group."),
        ("group.consumer.session.timeout.ms", "int", str(groups.consumer_session_timeout_ms), "Silence after which a member of a consumer group is gone."),
        ("group.coordinator.rebalance.protocols", "list", "classic,consumer", "The protocols of groups."),
        ("group.initial.rebalance.delay.ms", "int", str(groups.initial_rebalance_delay_ms), "How long a new classic group waits for more members."),
        ("group.max.session.timeout.ms", "int", str(groups.max_session_timeout_ms), "Longest session timeout of a classic group."),
        ("group.max.size", "int", str(groups.max_members_per_group), "Members of a classic group."),
        ("group.min.session.timeout.ms", "int", str(groups.min_session_timeout_ms), "Shortest session timeout of a classic group."),
        ("log.dir", "string", directories[0] if directories else "", "Where the log is."),
        ("log.dirs", "list", ",".join(directories), "Where the log is."),
        ("log.retention.hours", "int", str(_hours(broker.store_defaults.retention_ms)), "log.retention.ms, in hours."),
        ("log.roll.hours", "int", str(_hours(broker.store_defaults.segment_ms)), "log.roll.ms, in hours."),
        ("offset.metadata.max.bytes", "int", str(groups.max_offset_metadata_bytes), "Largest note beside a committed offset."),
        ("offsets.retention.minutes", "int", str(groups.offsets_retention_ms // 60_000), "How long the offsets of an empty group are kept."),
        ("offsets.topic.num.partitions", "int", "1", "Partitions of __consumer_offsets."),
        ("offsets.topic.replication.factor", "short", "1", "Replicas of __consumer_offsets."),
        ("transaction.max.timeout.ms", "int", str(transactions.max_timeout_ms), "Longest timeout that a transaction may ask for."),
        ("transaction.state.log.min.isr", "int", "1", "Replicas of __transaction_state that must be in sync."),
        ("transaction.state.log.num.partitions", "int", "1", "Partitions of __transaction_state."),
        ("transaction.state.log.replication.factor", "short", "1", "Replicas of __transaction_state."),
        ("transactional.id.expiration.ms", "int", str(transactions.transactional_id_expiration_ms), "How long an idle transactional id is remembered."),
        ("auto.create.topics.enable", "boolean", str(broker.settings.auto_create_topics).lower(), "Whether a topic is created when a client first names it."),
        ("broker.id", "int", str(broker.settings.node_id), "This broker's number."),
        ("fetch.max.bytes", "int", str(limits.fetch_max_bytes), "Largest fetch response."),
        ("max.connections", "int", str(limits.max_connections), "Connections served at the same time."),
        ("node.id", "int", str(broker.settings.node_id), "This broker's number."),
        ("num.partitions", "int", str(broker.settings.num_partitions), "Partitions of a topic that is created without saying how many."),
        ("socket.request.max.bytes", "int", str(limits.max_request_bytes), "Largest request."),
    ]  # fmt: skip
    defaults = broker.store_defaults
    rows += [
        (broker_name(setting.name), setting.kind, defaults.value(setting.name), setting.doc)
        for setting in SETTINGS.values()
        if setting.name not in _OF_TOPICS_ONLY
    ]
    for name, kind, value, doc in sorted(rows):
        yield DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=True,
            is_default=False,
            config_source=SOURCE_STATIC_BROKER,
            config_type=TYPES[kind],
            documentation=doc,
        )


def _hours(duration_ms: int) -> int:
    return duration_ms if duration_ms < 0 else duration_ms // 3_600_000


def _topic(context: Context, name: str) -> TopicInfo:
    info = context.broker.topic(name)
    if info is None:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    return info


def _check_broker(context: Context, name: str) -> None:
    node_id = context.broker.settings.node_id
    if name not in {"", str(node_id)}:
        raise InvalidConfig(f"unexpected broker id {name!r}; this broker is {node_id}")


def _alterable(context: Context, resource_type: int, name: str) -> TopicInfo:
    """The topic whose settings are to be changed."""
    if resource_type == BROKER:
        raise InvalidConfig(
            "the broker's settings come from trunkline.toml, the environment and flags; change them there"
        )
    if resource_type != TOPIC:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    guard.check(guard.Operation.CONFIGURE, name)
    _check_resource(context, Operation.ALTER_CONFIGS, resource_type, name)
    return _topic(context, name)


async def alter_configs(context: Context, request: full.AlterConfigsRequest) -> full.AlterConfigsResponse:
    response = full.AlterConfigsResponse()
    for resource in request.resources:
        result = full.AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.responses.append(result)
        try:
            overrides: dict[str, str] = {}
            for setting in resource.configs:
                if setting.value is None:
                    raise InvalidConfig(f"{setting.name} has no value; leave it out to return to the default")
                overrides[setting.name] = setting.value
            if resource.resource_type != TOPIC:
                _check_resource(context, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
            if resource.resource_type == GROUP:
                name, groups = resource.resource_name, context.broker.groups
                await groups.configure(name, overrides, validate_only=request.validate_only)
                _note(context, f"group {name}", overrides, validate_only=request.validate_only)
                continue
            info = _alterable(context, resource.resource_type, resource.resource_name)
            await _apply(context, info, overrides, validate_only=request.validate_only)
        except (LogError, RefusedError, GroupError) as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


async def incremental_alter_configs(
    context: Context, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    response = incremental.IncrementalAlterConfigsResponse()
    for resource in request.resources:
        result = incremental.AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.responses.append(result)
        try:
            await _edit_resource(context, resource, validate_only=request.validate_only)
        except (LogError, RefusedError, GroupError) as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


async def _edit_resource(context: Context, resource: incremental.AlterConfigsResource, *, validate_only: bool) -> None:
    seen: set[str] = set()
    for setting in resource.configs:
        if setting.name in seen:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{setting.name} is named more than once")
        seen.add(setting.name)
    if resource.resource_type != TOPIC:
        _check_resource(context, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
    if resource.resource_type == GROUP:
        await edit_group(context, resource.resource_name, resource.configs, validate_only=validate_only)
        _note(context, f"group {resource.resource_name}", seen, validate_only=validate_only)
    elif resource.resource_type == BROKER_LOGGER:
        edit_loggers(context, resource.resource_name, resource.configs, validate_only=validate_only)
    elif resource.resource_type == BROKER and all(map(_changes_nothing, resource.configs)):
        _check_broker(context, resource.resource_name)
    else:
        info = _alterable(context, resource.resource_type, resource.resource_name)
        overrides = dict(info.config.overrides)
        for setting in resource.configs:
            _edit(info.config, overrides, setting)
        await _apply(context, info, overrides, validate_only=validate_only)


def _changes_nothing(setting: incremental.AlterableConfig) -> bool:
    """Whether a broker's setting is taken: nothing set over the protocol can be deleted, nothing replicated throttled."""
    return setting.config_operation == OP_DELETE or setting.name in _THROTTLES


def _edit(config: TopicConfig, overrides: dict[str, str], setting: incremental.AlterableConfig) -> None:
    name, value = setting.name, setting.value
    if name not in SETTINGS:
        raise InvalidConfig(f"unknown topic setting {name}")
    if setting.config_operation == OP_DELETE:
        overrides.pop(name, None)
        return
    if value is None:
        raise InvalidConfig(f"null value is not supported for {name}")
    if setting.config_operation == OP_SET:
        overrides[name] = value
        return
    if setting.config_operation not in {OP_APPEND, OP_SUBTRACT} or SETTINGS[name].kind != "list":
        raise InvalidConfig(f"{name} is not a list: it can be set or deleted, not appended to or subtracted from")
    words, given = words_of(overrides.get(name, config.value(name))), words_of(value)
    if setting.config_operation == OP_APPEND:
        words += [word for word in given if word not in words]
    else:
        words = [word for word in words if word not in given]
    overrides[name] = ",".join(words)


async def _apply(context: Context, info: TopicInfo, overrides: dict[str, str], *, validate_only: bool) -> None:
    TopicConfig(overrides)  # raises InvalidConfig for what the log would not take
    if not validate_only:
        await context.broker.configure_topic(info.name, overrides)
    before = info.config.overrides
    changed = {name for name in {*before, *overrides} if before.get(name) != overrides.get(name)}
    _note(context, f"topic {info.name}", changed, validate_only=validate_only)


def _note(context: Context, target: str, names: Iterable[str], *, validate_only: bool) -> None:
    changed = sorted(names)
    if changed and not validate_only:
        context.changed(target, f"settings: {', '.join(changed)}")


async def list_config_resources(context: Context, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    response = ListConfigResourcesResponse()
    if context.refuses(Operation.DESCRIBE_CONFIGS, Kind.CLUSTER, CLUSTER_NAME):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = set(request.resource_types) or _LISTED
    if context.version == 0:
        return response  # version 0 lists client-metrics resources only, and there are none
    if not wanted <= _LISTED:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if GROUP in wanted:
        response.config_resources += [
            ConfigResource(resource_name=name, resource_type=GROUP) for name in context.broker.groups.settings.groups()
        ]
    if TOPIC in wanted:
        response.config_resources += [
            ConfigResource(resource_name=name, resource_type=TOPIC)
            for name in context.broker.topics()
            if context.allows(Operation.DESCRIBE, Kind.TOPIC, name)
        ]
    response.config_resources += [
        ConfigResource(resource_name=str(context.broker.settings.node_id), resource_type=resource_type)
        for resource_type in (BROKER_LOGGER, BROKER)
        if resource_type in wanted
    ]
    return response
