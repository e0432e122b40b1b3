"""Rules, as Kafka's tools write and read them: DescribeAcls, CreateAcls, DeleteAcls.

The broker's rules have Kafka's shape and numbers (`security/rules`), so this only checks and matches. Rules about MQTT topics are
not shown here, and cannot be made or removed: Kafka has no word for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline.log.errors import LogError
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError, code_of
from trunkline.protocols.kafka.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from trunkline.protocols.kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from trunkline.protocols.kafka.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from trunkline.security.rules import CLUSTER_NAME, WILDCARD, Effect, InvalidRule, Kind, Operation, Pattern, Rule

_ANY: Final = 1
_MATCH: Final = 2  # a pattern type of filters: every rule about the resource of that name
_KINDS: Final = frozenset(Kind) - {Kind.MQTT_TOPIC}
_PATTERNS: Final = frozenset({Pattern.LITERAL, Pattern.PREFIXED})


async def describe_acls(context: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
    response = DescribeAclsResponse()
    try:
        context.check_cluster(Operation.DESCRIBE)
        matching = _filter(request)
    except (LogError, RefusedError) as error:
        return DescribeAclsResponse(error_code=code_of(error), error_message=str(error))
    resources: dict[tuple[Kind, Pattern, str], DescribeAclsResource] = {}
    for rule in context.broker.access.rules:
        if matching(rule):
            place = (rule.kind, rule.pattern, rule.name)
            if place not in resources:
                resources[place] = DescribeAclsResource(
                    resource_type=rule.kind, resource_name=rule.name, pattern_type=rule.pattern
                )
            resources[place].acls.append(
                AclDescription(
                    principal=rule.principal, host=rule.host, operation=rule.operation, permission_type=rule.effect
                )
            )
    response.resources = list(resources.values())
    return response


async def create_acls(context: Context, request: CreateAclsRequest) -> CreateAclsResponse:
    """Each is added or refused by itself; what was added is on disk when this answers."""
    response = CreateAclsResponse()
    refused = context.refuses(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME)
    added: list[Rule] = []
    for creation in request.creations:
        result = AclCreationResult()
        response.results.append(result)
        if refused:
            result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            result.error_message = "Cluster authorization failed."
            continue
        try:
            rule = _rule(creation)
            rule.check()
        except (RefusedError, InvalidRule) as error:
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
            continue
        added.append(rule)
    fresh = [rule for rule in dict.fromkeys(added) if rule not in context.broker.access.rules]
    try:
        recorded = context.broker.access.book.add(fresh)
    except InvalidRule as error:
        for result in response.results:
            if not result.error_code:
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
        return response
    if recorded is not None:
        await recorded
    for rule in fresh:
        context.changed("rules", f"added {rule}")
    return response


async def delete_acls(context: Context, request: DeleteAclsRequest) -> DeleteAclsResponse:
    response = DeleteAclsResponse()
    rules = context.broker.access.rules
    refused = context.refuses(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME)
    gone: dict[Rule, None] = {}
    for asked in request.filters:
        result = DeleteAclsFilterResult()
        response.filter_results.append(result)
        if refused:
            result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            result.error_message = "Cluster authorization failed."
            continue
        try:
            matching = _filter(asked)
        except RefusedError as error:
            result.error_code, result.error_message = code_of(error), str(error)
            continue
        found = [rule for rule in rules if matching(rule)]
        gone.update(dict.fromkeys(found))
        result.matching_acls = [
            DeleteAclsMatchingAcl(
                resource_type=rule.kind,
                resource_name=rule.name,
                pattern_type=rule.pattern,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.effect,
            )
            for rule in found
        ]
    recorded = context.broker.access.book.remove(gone)
    if recorded is not None:
        await recorded
    for rule in gone:
        context.changed("rules", f"removed {rule}")
    return response


def _rule(asked: AclCreation) -> Rule:
    if asked.resource_type not in _KINDS:
        raise _invalid(f"Invalid resourceType {asked.resource_type}")
    if asked.resource_pattern_type not in _PATTERNS:
        raise _invalid(f"Invalid patternType {asked.resource_pattern_type}")
    if asked.operation not in list(Operation):
        raise _invalid(f"Invalid operation type {asked.operation}")
    if asked.permission_type not in list(Effect):
        raise _invalid(f"Invalid permissionType {asked.permission_type}")
    if not asked.resource_name:
        raise _invalid("Invalid empty resource name")
    return Rule(
        Kind(asked.resource_type),
        Pattern(asked.resource_pattern_type),
        asked.resource_name,
        asked.principal,
        asked.host,
        Operation(asked.operation),
        Effect(asked.permission_type),
    )


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> Callable[[Rule], bool]:
    """A test of rules."""
    if (
        asked.resource_type_filter not in {_ANY, *_KINDS}
        or asked.pattern_type_filter not in {_ANY, _MATCH, *_PATTERNS}
        or asked.operation not in {_ANY, *Operation}
        or asked.permission_type not in {_ANY, *Effect}
    ):
        raise _invalid("The AclBindingFilter must not contain UNKNOWN elements.")

    def test(rule: Rule) -> bool:
        return (
            rule.kind in _KINDS
            and asked.resource_type_filter in (_ANY, rule.kind)
            and _names(asked.pattern_type_filter, asked.resource_name_filter, rule)
            and asked.principal_filter in (None, rule.principal)
            and asked.host_filter in (None, rule.host)
            and asked.operation in (_ANY, rule.operation)
            and asked.permission_type in (_ANY, rule.effect)
        )

    return test


def _names(pattern: int, name: str | None, rule: Rule) -> bool:
    """Whether a rule has the pattern that a filter asks for, or with MATCH one that is about the name."""
    if pattern != _MATCH:
        return pattern in (_ANY, rule.pattern) and name in (None, rule.name)
    if name is None:
        return True
    if rule.pattern is Pattern.PREFIXED:
        return name.startswith(rule.name)
    return rule.name in (name, WILDCARD)


def _invalid(text: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, text)
