"""Settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Topic settings can be changed. The broker's own come from its configuration file, environment and flags, and are shown
read-only under Kafka's names.
"""

from __future__ import annotations

from collections.abc import Iterator

from trunkline.broker import guard
from trunkline.broker.guard import Operation
from trunkline.log.config import SETTINGS, Setting, TopicConfig
from trunkline.log.errors import InvalidConfig, LogError, UnknownTopicOrPartition
from trunkline.log.store import TopicInfo
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
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

TOPIC, BROKER = 2, 4
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
OP_SET, OP_DELETE, OP_APPEND, OP_SUBTRACT = 0, 1, 2, 3
_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}
# What Kafka calls the broker-wide default of a topic setting, where it is not "log." and the same name.
_BROKER_NAMES = {
    "compression.type": "compression.type",
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
            entries = _entries(context, resource, synonyms=request.include_synonyms)
            wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
            result.configs = [entry for entry in entries if wanted is None or entry.name in wanted]
        except LogError as error:
            result.error_code, result.error_message = code_of(error), str(error)
            continue
        if not request.include_documentation:
            for entry in result.configs:
                entry.documentation = None
    return response


def _entries(
    context: Context, resource: DescribeConfigsResource, *, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == TOPIC:
        guard.check(Operation.DESCRIBE, resource.resource_name)
        config = _topic(context, resource.resource_name).config
        return [_topic_entry(config, setting, synonyms=synonyms) for setting in SETTINGS.values()]
    if resource.resource_type == BROKER:
        _check_broker(context, resource.resource_name)
        return list(_broker_entries(context))
    raise InvalidConfig(f"resource type {resource.resource_type} has no settings here; topics (2) and brokers (4) have")


def _topic_entry(config: TopicConfig, setting: Setting, *, synonyms: bool) -> DescribeConfigsResourceResult:
    source = source_of(config, setting.name)
    entry = DescribeConfigsResourceResult(
        name=setting.name,
        value=config.value(setting.name),
        read_only=False,
        is_default=source != SOURCE_TOPIC,
        config_source=source,
        config_type=_TYPES[setting.kind],
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
        entry.synonyms.append(
            DescribeConfigsSynonym(name=broker_name(name), value=setting.default, source=SOURCE_DEFAULT)
        )
    return entry


def _broker_entries(context: Context) -> Iterator[DescribeConfigsResourceResult]:
    broker = context.broker
    host, port = context.address
    limits = broker.limits
    rows = [
        ("advertised.listeners", "string", f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}", "The address that clients are told."),
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
    ]
    for name, kind, value, doc in sorted(rows):
        yield DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=True,
            is_default=False,
            config_source=SOURCE_STATIC_BROKER,
            config_type=_TYPES[kind],
            documentation=doc,
        )


def _topic(context: Context, name: str) -> TopicInfo:
    info = context.broker.store.topic(name)
    if info is None:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    return info


def _check_broker(context: Context, name: str) -> None:
    node_id = context.broker.settings.node_id
    if name not in {"", str(node_id)}:
        raise InvalidConfig(f"unexpected broker id {name!r}; this broker is {node_id}")


def _alterable(context: Context, resource_type: int, name: str) -> TopicInfo:
    if resource_type == BROKER:
        raise InvalidConfig(
            "the broker's settings come from trunkline.toml, the environment and flags; change them there"
        )
    if resource_type != TOPIC:
        raise InvalidConfig(f"resource type {resource_type} has no settings here; topics (2) have")
    guard.check(Operation.CONFIGURE, name)
    return _topic(context, name)


async def alter_configs(context: Context, request: full.AlterConfigsRequest) -> full.AlterConfigsResponse:
    response = full.AlterConfigsResponse()
    for resource in request.resources:
        result = full.AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.responses.append(result)
        try:
            info = _alterable(context, resource.resource_type, resource.resource_name)
            overrides: dict[str, str] = {}
            for setting in resource.configs:
                if setting.value is None:
                    raise InvalidConfig(f"{setting.name} has no value; leave it out to return to the default")
                overrides[setting.name] = setting.value
            await _apply(context, info, overrides, validate_only=request.validate_only)
        except LogError as error:
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
            info = _alterable(context, resource.resource_type, resource.resource_name)
            overrides = dict(info.config.overrides)
            seen: set[str] = set()
            for setting in resource.configs:
                if setting.name in seen:
                    result.error_code = ErrorCode.INVALID_REQUEST
                    result.error_message = f"{setting.name} is named more than once"
                    break
                seen.add(setting.name)
                _edit(info.config, overrides, setting)
            else:
                await _apply(context, info, overrides, validate_only=request.validate_only)
        except LogError as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


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
    words = [word.strip() for word in config.value(name).split(",") if word.strip()]
    given = [word.strip() for word in value.split(",") if word.strip()]
    if setting.config_operation == OP_APPEND:
        words += [word for word in given if word not in words]
    else:
        words = [word for word in words if word not in given]
    overrides[name] = ",".join(words)


async def _apply(context: Context, info: TopicInfo, overrides: dict[str, str], *, validate_only: bool) -> None:
    TopicConfig(overrides)  # raises InvalidConfig for what the log would not take
    if not validate_only:
        await context.broker.configure_topic(info.name, overrides)


async def list_config_resources(context: Context, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    response = ListConfigResourcesResponse()
    wanted = set(request.resource_types)
    if context.version == 0:
        return response  # version 0 lists client-metrics resources only, and there are none
    if not wanted or TOPIC in wanted:
        private = guard.refused(Operation.DESCRIBE)
        response.config_resources += [
            ConfigResource(resource_name=name, resource_type=TOPIC)
            for name in context.broker.store.topics()
            if name not in private
        ]
    if not wanted or BROKER in wanted:
        response.config_resources.append(
            ConfigResource(resource_name=str(context.broker.settings.node_id), resource_type=BROKER)
        )
    return response
