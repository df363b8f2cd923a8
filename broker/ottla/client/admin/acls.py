"""Access control lists (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.client.admin.base import Family
from ottla.client.routing import raise_first
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


class Acls(Family):
    async def describe_acls(self, wanted: AclFilter = _EVERYTHING) -> list[AclBinding]:
        """The ACLs that the filter matches. Raises KafkaError: SECURITY_DISABLED without an authorizer."""
        pattern, entry = wanted
        response = await self._brokers.any(
            m.DescribeAclsRequest(
                resource_type_filter=pattern.resource_type,
                resource_name_filter=pattern.name,
                pattern_type_filter=pattern.pattern_type,
                principal_filter=entry.principal,
                host_filter=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
        )
        raise_first([(response.error_code, response.error_message)])
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

    async def create_acls(self, bindings: Sequence[AclBinding]) -> None:
        """Add ACLs; those that are there already stay. Raises the first KafkaError."""
        creation = m.CreateAclsRequest.AclCreation
        response = await self._brokers.any(
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
                    for pattern, entry in bindings
                ]
            )
        )
        raise_first((result.error_code, result.error_message) for result in response.results)

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Remove all ACLs that match any of the filters; what was removed. Raises the first KafkaError."""
        one = m.DeleteAclsRequest.DeleteAclsFilter
        response = await self._brokers.any(
            m.DeleteAclsRequest(
                filters=[
                    one(
                        resource_type_filter=pattern.resource_type,
                        resource_name_filter=pattern.name,
                        pattern_type_filter=pattern.pattern_type,
                        principal_filter=entry.principal,
                        host_filter=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission,
                    )
                    for pattern, entry in filters
                ]
            )
        )
        raise_first((result.error_code, result.error_message) for result in response.filter_results)
        matching = [acl for result in response.filter_results for acl in result.matching_acls]
        raise_first((acl.error_code, acl.error_message) for acl in matching)
        return [
            AclBinding(
                ResourcePattern(
                    ResourceType.of(acl.resource_type), acl.resource_name, PatternType.of(acl.pattern_type)
                ),
                _entry(acl),
            )
            for acl in matching
        ]


def _entry(
    acl: m.DescribeAclsResponse.AclDescription | m.DeleteAclsResponse.DeleteAclsMatchingAcl,
) -> Entry:
    return Entry(acl.principal, acl.host, Operation.of(acl.operation), Permission.of(acl.permission_type))
