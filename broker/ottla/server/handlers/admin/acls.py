"""DescribeAcls, CreateAcls and DeleteAcls, versions 0 to 3 (KIP-140, KIP-290).

Behaviour: any broker responds; by then a change is stored in ZooKeeper, effective on this broker, and
announced to the others. Each entry to create, and each filter to delete by, has its own result. Without an
authorizer, and with a custom one, which has no ACLs, the error is SECURITY_DISABLED.
`ottla.server.authorization` authorizes the requests. Version 0 has only literal patterns.

A request with a field of code 0 (UNKNOWN) is malformed, as in Kafka; other unknown codes are INVALID_REQUEST
in an entry to create, and match nothing in a filter.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ottla.metadata.acls import Deleted, StoredAcls
from ottla.metadata.custom_authorizer import CustomAuthorizer
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    Entry,
    EntryFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.server.dispatch.dispatcher import Request, Route

_UNKNOWN: Final = 0
_DISABLED: Final = "No Authorizer is configured"

Creation: TypeAlias = m.CreateAclsRequest.AclCreation
Outcome: TypeAlias = m.CreateAclsResponse.AclCreationResult


class AclsHandler:
    def __init__(self, acls: StoredAcls | None, custom: CustomAuthorizer | None = None) -> None:
        """`acls` None: there is no authorizer, or a custom one."""
        self._acls = acls
        self._custom = custom

    def routes(self) -> list[Route]:
        return [
            Route(m.DescribeAclsRequest, self.describe, _describe_error),
            Route(m.CreateAclsRequest, self.create, _create_error),
            Route(m.DeleteAclsRequest, self.delete, _delete_error),
        ]

    def describe(self, request: Request) -> None:
        message = request.decode(m.DescribeAclsRequest)
        wanted = _filter(message, message.resource_type_filter, message.pattern_type_filter)
        if self._acls is None:
            raise self._disabled(f"{_DISABLED} on the broker")
        resources: dict[ResourcePattern, list[m.DescribeAclsResponse.AclDescription]] = {}
        for pattern, entry in self._acls.authorizer.bindings(wanted):
            resources.setdefault(pattern, []).append(
                m.DescribeAclsResponse.AclDescription(
                    principal=entry.principal,
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
            )
        request.respond(
            m.DescribeAclsResponse(
                error_message=None,
                resources=[
                    m.DescribeAclsResponse.DescribeAclsResource(
                        resource_type=pattern.resource_type,
                        resource_name=pattern.name,
                        pattern_type=pattern.pattern_type,
                        acls=entries,
                    )
                    for pattern, entries in resources.items()
                ],
            )
        )

    async def create(self, request: Request) -> m.CreateAclsResponse:
        message = request.decode(m.CreateAclsRequest)
        for each in message.creations:
            if _UNKNOWN in (
                each.resource_type,
                each.resource_pattern_type,
                each.operation,
                each.permission_type,
            ):
                raise MalformedMessage("an entry to create", "an element is unknown")
        if self._acls is None:
            raise self._disabled(f"{_DISABLED}.")
        bindings = [_binding(each) for each in message.creations]
        problems = [_problem(each) for each in bindings]
        good = [each for each, problem in zip(bindings, problems, strict=True) if problem is None]
        failures = iter(await self._acls.create(good))
        return m.CreateAclsResponse(
            results=[
                _refused(problem) if problem is not None else _outcome(next(failures)) for problem in problems
            ]
        )

    async def delete(self, request: Request) -> m.DeleteAclsResponse:
        message = request.decode(m.DeleteAclsRequest)
        filters = [_filter(x, x.resource_type_filter, x.pattern_type_filter) for x in message.filters]
        if self._acls is None:
            raise self._disabled(f"{_DISABLED}.")
        return m.DeleteAclsResponse(
            filter_results=[
                m.DeleteAclsResponse.DeleteAclsFilterResult(
                    error_message=None, matching_acls=[_matching(each) for each in deleted]
                )
                for deleted in await self._acls.delete(filters)
            ]
        )

    def _disabled(self, without_authorizer: str) -> KafkaError:
        if self._custom is not None:
            return KafkaError(ErrorCode.SECURITY_DISABLED, f"The authorizer {self._custom.name} has no ACLs.")
        return KafkaError(ErrorCode.SECURITY_DISABLED, without_authorizer)


def _filter(
    message: m.DescribeAclsRequest | m.DeleteAclsRequest.DeleteAclsFilter,
    resource_type: int,
    pattern_type: int,
) -> AclFilter:
    """Raises MalformedMessage."""
    if _UNKNOWN in (resource_type, pattern_type, message.operation, message.permission_type):
        raise MalformedMessage("a filter", "an element is unknown")
    return AclFilter(
        PatternFilter(
            ResourceType.of(resource_type), message.resource_name_filter, PatternType.of(pattern_type)
        ),
        EntryFilter(
            message.principal_filter,
            message.host_filter,
            Operation.of(message.operation),
            Permission.of(message.permission_type),
        ),
    )


def _binding(creation: Creation) -> AclBinding:
    """Raises KafkaError for codes that only filters may have; as in Kafka, that fails the whole request."""
    pattern = ResourcePattern(
        ResourceType.of(creation.resource_type),
        creation.resource_name,
        PatternType.of(creation.resource_pattern_type),
    )
    entry = Entry(
        creation.principal,
        creation.host,
        Operation.of(creation.operation),
        Permission.of(creation.permission_type),
    )
    for_filters = (ResourceType.ANY, PatternType.ANY, PatternType.MATCH, Operation.ANY, Permission.ANY)
    of_entry = (pattern.resource_type, pattern.pattern_type, entry.operation, entry.permission)
    if any(each is other for each in of_entry for other in for_filters):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return AclBinding(pattern, entry)


def _problem(binding: AclBinding) -> str | None:
    """Kafka's message for an invalid entry (INVALID_REQUEST); None if it is valid."""
    pattern = binding.pattern
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not pattern.name:
        return "Invalid empty resource name"
    if binding.is_unknown or "/" in pattern.name:
        return "Failed to create ACL"
    return None


def _refused(problem: str) -> Outcome:
    return Outcome(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)


def _outcome(failure: Exception | None) -> Outcome:
    code = ErrorCode.NONE if failure is None else ErrorCode.UNKNOWN_SERVER_ERROR
    return Outcome(error_code=code, error_message=None)


def _matching(deleted: Deleted) -> m.DeleteAclsResponse.DeleteAclsMatchingAcl:
    pattern, entry = deleted.binding
    return m.DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE if deleted.error is None else ErrorCode.UNKNOWN_SERVER_ERROR,
        error_message=None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _describe_error(
    message: m.DescribeAclsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeAclsResponse:
    return m.DescribeAclsResponse(error_code=code, error_message=detail)


def _create_error(
    message: m.CreateAclsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.CreateAclsResponse:
    return m.CreateAclsResponse(
        results=[Outcome(error_code=code, error_message=detail) for _ in message.creations]
    )


def _delete_error(
    message: m.DeleteAclsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DeleteAclsResponse:
    return m.DeleteAclsResponse(
        filter_results=[
            m.DeleteAclsResponse.DeleteAclsFilterResult(error_code=code, error_message=detail)
            for _ in message.filters
        ]
    )
