"""Access control lists (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.client.admin.network import AdminNetwork, outcome, raise_error
from ottla.client.admin_types import Results
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.security.acls import (
    AclBinding,
    AclFilter,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

_EVERYTHING = AclFilter()


async def describe_acls(network: AdminNetwork, wanted: AclFilter = _EVERYTHING) -> list[AclBinding]:
    """The ACLs that the filter matches. Raises KafkaError: SECURITY_DISABLED without an authorizer."""
    response = await network.any_broker(m.DescribeAclsRequest(**_filter_fields(wanted)))
    raise_error(response.error_code, response.error_message)
    return [
        AclBinding(
            ResourcePattern(
                ResourceType.of(resource.resource_type),
                resource.resource_name,
                PatternType.of(resource.pattern_type),
            ),
            _entry(acl),
        )
        for resource in response.resources
        for acl in resource.acls
    ]


async def create_acls(network: AdminNetwork, bindings: Iterable[AclBinding]) -> Results[AclBinding, None]:
    """Create ACLs; existing ones stay."""
    wanted = list(dict.fromkeys(bindings))
    if not wanted:
        return Results({})
    creation = m.CreateAclsRequest.AclCreation
    response = await network.any_broker(
        m.CreateAclsRequest(
            creations=[
                creation(
                    resource_type=pattern.resource_type,
                    resource_name=pattern.name,
                    resource_pattern_type=pattern.pattern_type,
                    principal=entry.principal,
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
                for pattern, entry in wanted
            ]
        )
    )
    rows = zip(wanted, response.results, strict=True)
    return Results({each: outcome(row.error_code, row.error_message, _named(each)) for each, row in rows})


async def delete_acls(
    network: AdminNetwork, filters: Iterable[AclFilter]
) -> Results[AclFilter, Results[AclBinding, None]]:
    """Delete all ACLs that match any of the filters; the result of a filter has the deleted ACLs and
    errors."""
    wanted = list(dict.fromkeys(filters))
    if not wanted:
        return Results({})
    row = m.DeleteAclsRequest.DeleteAclsFilter
    response = await network.any_broker(
        m.DeleteAclsRequest(filters=[row(**_filter_fields(each)) for each in wanted])
    )
    rows = zip(wanted, response.filter_results, strict=True)
    return Results(
        {each: outcome(row.error_code, row.error_message, "") or _removed(row) for each, row in rows}
    )


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    """The fields of a filter, which DescribeAcls and DeleteAcls have in common."""
    pattern, entry = wanted
    return {
        "resource_type_filter": pattern.resource_type,
        "resource_name_filter": pattern.name,
        "pattern_type_filter": pattern.pattern_type,
        "principal_filter": entry.principal,
        "host_filter": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def _removed(row: m.DeleteAclsResponse.DeleteAclsFilterResult) -> Results[AclBinding, None]:
    found: dict[AclBinding, ClientError | None] = {}
    for acl in row.matching_acls:
        pattern = ResourcePattern(
            ResourceType.of(acl.resource_type), acl.resource_name, PatternType.of(acl.pattern_type)
        )
        binding = AclBinding(pattern, _entry(acl))
        found[binding] = outcome(acl.error_code, acl.error_message, _named(binding))
    return Results(found)


def _named(binding: AclBinding) -> str:
    pattern, entry = binding
    return f"{entry.principal} on {pattern.resource_type.label} {pattern.name}"


def _entry(
    acl: m.DescribeAclsResponse.AclDescription | m.DeleteAclsResponse.DeleteAclsMatchingAcl,
) -> Entry:
    return Entry(acl.principal, acl.host, Operation.of(acl.operation), Permission.of(acl.permission_type))
