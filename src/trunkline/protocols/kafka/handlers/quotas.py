"""Quotas of clients: DescribeClientQuotas and AlterClientQuotas. What they do to clients is the session's matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline.log.errors import LogError
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError, code_of
from trunkline.protocols.kafka.messages import alter_client_quotas as alter
from trunkline.protocols.kafka.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from trunkline.security.quotas import KEYS, Entity, InvalidQuota, check, entity_of
from trunkline.security.rules import CLUSTER_NAME, Kind, Operation

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_MATCHES: Final = frozenset({_EXACT, _DEFAULT, _ANY})


async def describe_client_quotas(
    context: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        context.check_cluster(Operation.DESCRIBE_CONFIGS)
        matching = _filter(request)
    except (LogError, RefusedError) as error:
        return DescribeClientQuotasResponse(error_code=code_of(error), error_message=str(error), entries=None)
    return DescribeClientQuotasResponse(
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in context.broker.access.book.quotas.by_entity.items()
            if matching(entity)
        ]
    )


def _filter(request: DescribeClientQuotasRequest) -> Callable[[Entity], bool]:
    wanted: dict[str, ComponentData] = {}
    for component in request.components:
        if component.entity_type in wanted:
            raise _invalid(f"Duplicate filter component entity type: {component.entity_type}")
        if component.entity_type not in KEYS:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{component.entity_type}' not supported"
            )
        if component.match_type not in _MATCHES or (component.match_type == _EXACT) != (component.match is not None):
            raise _invalid(f"Request specifies match type {component.match_type} with the match {component.match!r}")
        wanted[component.entity_type] = component

    def test(entity: Entity) -> bool:
        parts = dict(entity)
        if request.strict and parts.keys() != wanted.keys():
            return False
        return all(kind in parts and _is(parts[kind], component) for kind, component in wanted.items())

    return test


def _is(name: str | None, component: ComponentData) -> bool:
    return component.match_type == _ANY or name == component.match


async def alter_client_quotas(
    context: Context, request: alter.AlterClientQuotasRequest
) -> alter.AlterClientQuotasResponse:
    response = alter.AlterClientQuotasResponse()
    refused = context.refuses(Operation.ALTER_CONFIGS, Kind.CLUSTER, CLUSTER_NAME)
    for entry in request.entries:
        result = alter.EntryResponse(
            error_message=None,
            entity=[
                alter.ResponseEntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                for each in entry.entity
            ],
        )
        response.entries.append(result)
        if refused:
            result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            continue
        try:
            await _alter(context, entry, validate_only=request.validate_only)
        except InvalidQuota as error:
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
        except LogError as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


async def _alter(context: Context, entry: alter.EntryData, *, validate_only: bool) -> None:
    parts = {each.entity_type: each.entity_name for each in entry.entity}
    if len(parts) != len(entry.entity):
        raise InvalidQuota("Invalid client quota entity: a type is named twice")
    entity = entity_of(parts)
    book = context.broker.access.book
    values = dict(book.quotas.by_entity.get(entity, {}))
    for change in entry.ops:
        if change.remove:
            values.pop(change.key, None)
            continue
        check(entity, change.key, change.value)
        values[change.key] = change.value
    if validate_only:
        return
    recorded = book.put_quotas(entity, values)
    if recorded is not None:
        await recorded
    shown = ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)
    context.changed(f"quotas of {shown}", ", ".join(f"{key}={value:g}" for key, value in values.items()) or "removed")


def _invalid(text: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, text)
