"""The settings of groups, and the levels of the broker's loggers, as resources of the config APIs.

A group's settings are kept in the log. A logger's level lasts as long as the process, as in Kafka; the loggers are
Python's, of which this broker's own begin with `trunkline`, and their levels have Kafka's words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from trunkline.cursors.stream.group_settings import GROUP_SETTINGS, GroupSetting, GroupSettings
from trunkline.log.errors import InvalidConfig
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError
from trunkline.protocols.kafka.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym
from trunkline.protocols.kafka.messages.incremental_alter_configs import AlterableConfig

OP_SET, OP_DELETE, OP_APPEND, OP_SUBTRACT = 0, 1, 2, 3
TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}
_OP_NAMES = {OP_APPEND: "APPEND", OP_SUBTRACT: "SUBTRACT"}
_SOURCE_DEFAULT, _SOURCE_LOGGER, _SOURCE_GROUP = 5, 6, 8
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_WORDS = {level: word for word, level in _LEVELS.items() if word != "TRACE"}
_ROOT = "root"


# -- groups ------------------------------------------------------------------------------------------------------


def group_entries(context: Context, group_id: str, *, synonyms: bool) -> list[DescribeConfigsResourceResult]:
    _check_group(group_id)
    settings = context.broker.groups.settings
    return [_group_entry(settings, group_id, setting, synonyms=synonyms) for setting in GROUP_SETTINGS.values()]


def _group_entry(
    settings: GroupSettings, group_id: str, setting: GroupSetting, *, synonyms: bool
) -> DescribeConfigsResourceResult:
    own, default = settings.overrides(group_id).get(setting.name), settings.default(setting)
    entry = DescribeConfigsResourceResult(
        name=setting.name,
        value=default if own is None else own,
        is_default=own is None,
        config_source=_SOURCE_DEFAULT if own is None else _SOURCE_GROUP,
        config_type=TYPES[setting.kind],
    )
    if synonyms:
        if own is not None:
            entry.synonyms.append(DescribeConfigsSynonym(name=setting.name, value=own, source=_SOURCE_GROUP))
        entry.synonyms.append(DescribeConfigsSynonym(name=setting.broker_name, value=default, source=_SOURCE_DEFAULT))
    return entry


async def edit_group(context: Context, group_id: str, edits: Sequence[AlterableConfig], *, validate_only: bool) -> None:
    _check_group(group_id)
    overrides = dict(context.broker.groups.settings.overrides(group_id))
    for edit in edits:
        if edit.config_operation == OP_DELETE:
            overrides.pop(edit.name, None)
        elif edit.config_operation != OP_SET:
            operation = _OP_NAMES.get(edit.config_operation, str(edit.config_operation))
            raise InvalidConfig(f"Can't {operation} to key {edit.name} because its type is not LIST.")
        elif edit.value is None:
            raise InvalidConfig(f"null value is not supported for {edit.name}")
        else:
            overrides[edit.name] = edit.value
    await context.broker.groups.configure(group_id, overrides, validate_only=validate_only)


def _check_group(group_id: str) -> None:
    if not group_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")


# -- loggers -----------------------------------------------------------------------------------------------------


def logger_entries(context: Context, name: str) -> list[DescribeConfigsResourceResult]:
    _check_broker(context, name)
    return [
        DescribeConfigsResourceResult(name=each, value=_level(each), is_default=False, config_source=_SOURCE_LOGGER)
        for each in _loggers()
    ]


def edit_loggers(context: Context, name: str, edits: Sequence[AlterableConfig], *, validate_only: bool) -> None:
    _check_broker(context, name)
    levels: dict[str, int] = {}
    known = frozenset(_loggers())
    for edit in edits:
        if edit.config_operation not in {OP_SET, OP_DELETE}:
            operation = _OP_NAMES.get(edit.config_operation, str(edit.config_operation))
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"{operation} operation is not allowed for the BROKER_LOGGER resource"
            )
        if edit.name not in known:
            raise InvalidConfig(f"Logger {edit.name} does not exist!")
        if edit.config_operation == OP_DELETE:
            if edit.name == _ROOT:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
                )
            levels[edit.name] = logging.NOTSET
        elif edit.value not in _LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {edit.name} to {edit.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(_LEVELS))}"
            )
        else:
            levels[edit.name] = _LEVELS[edit.value]
    if not validate_only:
        for each, level in levels.items():
            _logger(each).setLevel(level)


def _loggers() -> Iterator[str]:
    yield _ROOT
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):  # the others only hold a place in the tree
            yield name


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == _ROOT else logging.getLogger(name)


def _level(name: str) -> str:
    level = _logger(name).getEffectiveLevel()
    return _WORDS.get(level) or next((_WORDS[known] for known in sorted(_WORDS) if known >= level), "FATAL")


def _check_broker(context: Context, name: str) -> None:
    node_id = context.broker.settings.node_id
    if name != str(node_id):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} but received {name}")
