"""Access control lists (KIP-140); from version 1 with prefixed patterns (KIP-290)."""

from __future__ import annotations

from ottla.protocol.types import Int8, Int16, Int32, Message, String, Struct, field


class DescribeAclsRequest(Message, api_key=29, versions="0-3", flexible="2+"):
    """Describes the ACLs that match a filter; null matches any value."""

    resource_type_filter: Int8 = field("0+")
    resource_name_filter: String | None = field("0+", nullable="0+")
    pattern_type_filter: Int8 = field("1+", default=3)
    principal_filter: String | None = field("0+", nullable="0+")
    host_filter: String | None = field("0+", nullable="0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class DescribeAclsResponse(Message, api_key=29, versions="0-3", flexible="2+"):
    """The ACLs by resource pattern."""

    class AclDescription(Struct):
        principal: String = field("0+")
        host: String = field("0+")
        operation: Int8 = field("0+")
        permission_type: Int8 = field("0+")

    class DescribeAclsResource(Struct):
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        pattern_type: Int8 = field("1+", default=3)
        acls: list[DescribeAclsResponse.AclDescription] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    resources: list[DescribeAclsResponse.DescribeAclsResource] = field("0+")


class CreateAclsRequest(Message, api_key=30, versions="0-3", flexible="2+"):
    """Creates ACLs."""

    class AclCreation(Struct):
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        resource_pattern_type: Int8 = field("1+", default=3)
        principal: String = field("0+")
        host: String = field("0+")
        operation: Int8 = field("0+")
        permission_type: Int8 = field("0+")

    creations: list[CreateAclsRequest.AclCreation] = field("0+")


class CreateAclsResponse(Message, api_key=30, versions="0-3", flexible="2+"):
    """The result of each ACL, in the order of the request."""

    class AclCreationResult(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[CreateAclsResponse.AclCreationResult] = field("0+")


class DeleteAclsRequest(Message, api_key=31, versions="0-3", flexible="2+"):
    """Deletes the ACLs that match any of the filters."""

    class DeleteAclsFilter(Struct):
        resource_type_filter: Int8 = field("0+")
        resource_name_filter: String | None = field("0+", nullable="0+")
        pattern_type_filter: Int8 = field("1+", default=3)
        principal_filter: String | None = field("0+", nullable="0+")
        host_filter: String | None = field("0+", nullable="0+")
        operation: Int8 = field("0+")
        permission_type: Int8 = field("0+")

    filters: list[DeleteAclsRequest.DeleteAclsFilter] = field("0+")


class DeleteAclsResponse(Message, api_key=31, versions="0-3", flexible="2+"):
    """The deleted ACLs of each filter, in the order of the request."""

    class DeleteAclsMatchingAcl(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        pattern_type: Int8 = field("1+", default=3)
        principal: String = field("0+")
        host: String = field("0+")
        operation: Int8 = field("0+")
        permission_type: Int8 = field("0+")

    class DeleteAclsFilterResult(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult] = field("0+")
