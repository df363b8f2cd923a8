"""Guards of the APIs about settings, descriptions of the cluster and delegation tokens.

Called through `ottla.server.authorization.table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    WriteTxnMarkersRequest,
)
from ottla.security.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.security.principals import Principal
from ottla.server.authorization.access import REFUSALS, WORDS, Access
from ottla.server.authorization.guarding import Amend, Guard, Verdict, refusals
from ottla.server.authorization.topics import at_the_controller, cluster_operations

CLUSTER, TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC
_TOPIC_CONFIG: Final = 2
_OF_CLUSTER: Final = (4, 8, 16)  # brokers, their loggers, client metrics


def configs(operation: Operation, answered: str, *, with_text: bool) -> Guard:
    """The settings of a topic need it on the topic, those of brokers on the cluster. A resource that is named
    twice, or is of no known type, is the handler's to refuse."""

    def guard(access: Access, message: Any) -> Verdict:
        times = Counter((each.resource_type, each.resource_name) for each in message.resources)
        denied: dict[ErrorCode, list[Any]] = {}
        for each in message.resources:
            if each.resource_type == _TOPIC_CONFIG:
                kind, name = TOPIC, each.resource_name
            elif each.resource_type in _OF_CLUSTER:
                kind, name = CLUSTER, CLUSTER_NAME
            else:
                continue
            alone = (
                operation is Operation.DESCRIBE_CONFIGS or times[each.resource_type, each.resource_name] == 1
            )
            if alone and not access.allows(operation, kind, name):
                denied.setdefault(REFUSALS[kind], []).append(each)
        if not denied:
            return None
        errors: list[Any] = []
        for code, resources in denied.items():
            detail = WORDS[code] if with_text else None
            errors += refusals(access, message, "resources", answered, resources, code, detail)
        refused = {id(each) for resources in denied.values() for each in resources}
        message.resources = [each for each in message.resources if id(each) not in refused]

        def amend(response: Any) -> None:
            getattr(response, answered).extend(errors)

        return amend

    return guard


def describe_cluster(access: Access, message: DescribeClusterRequest) -> Amend | None:
    """Anybody; what may be done to the cluster is told to whom may describe it."""
    if not message.include_cluster_authorized_operations:
        return None

    def amend(response: DescribeClusterResponse) -> None:
        if not response.error_code:
            response.cluster_authorized_operations = cluster_operations(access)

    return amend


def describe_log_dirs(access: Access, message: DescribeLogDirsRequest) -> Verdict:
    """DESCRIBE on the cluster."""
    if access.allows_cluster(Operation.DESCRIBE):
        return None
    return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def describe_scram(access: Access, message: DescribeUserScramCredentialsRequest) -> Verdict:
    """DESCRIBE on the cluster; the refusal gives back no names."""
    if access.allows_cluster(Operation.DESCRIBE):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    row = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=None,
        results=[row(error_code=code, error_message=None) for _ in message.users or ()],
    )


def alter_scram(is_controller: Callable[[], bool]) -> Guard:
    """ALTER on the cluster. Other brokers say NOT_CONTROLLER before anything else."""

    def guard(access: Access, message: AlterUserScramCredentialsRequest) -> Verdict:
        at_the_controller(is_controller)
        if access.allows_cluster(Operation.ALTER):
            return None
        names = dict.fromkeys(each.name for each in message.deletions)
        names |= dict.fromkeys(each.name for each in message.upsertions)
        row = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AlterUserScramCredentialsResponse(
            results=[row(user=name, error_code=code, error_message=None) for name in names]
        )

    return guard


def write_txn_markers(access: Access, message: WriteTxnMarkersRequest) -> None:
    """Brokers have CLUSTER_ACTION; who ends a hanging transaction by hand, ALTER on the cluster."""
    if not access.allows_cluster(Operation.ALTER, quiet=True):
        access.require_cluster(Operation.CLUSTER_ACTION)


def describe_tokens(access: Access, message: DescribeDelegationTokenRequest) -> Amend:
    """Owners and renewers see theirs; others need DESCRIBE on the token, or DESCRIBE_TOKENS on its owner."""
    me = access.request.principal

    def is_visible(token: DescribeDelegationTokenResponse.DescribedDelegationToken) -> bool:
        owner = Principal(token.principal_type, token.principal_name)
        renewers = [Principal(each.principal_type, each.principal_name) for each in token.renewers]
        return (
            me == owner
            or me in renewers
            or access.allows(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
            or access.allows(Operation.DESCRIBE_TOKENS, ResourceType.USER, str(owner))
        )

    def amend(response: DescribeDelegationTokenResponse) -> None:
        response.tokens = [token for token in response.tokens if is_visible(token)]

    return amend


def create_token(access: Access, message: CreateDelegationTokenRequest) -> Amend | None:
    """For oneself anybody; for another owner CREATE_TOKENS on that user.

    Whether the connection may talk of tokens at all comes first in Kafka, and is the handler's to say; so a
    request that is denied goes on with a renewer that the handler refuses, which is called by its name here.
    """
    if not message.owner_principal_name:
        return None
    owner = Principal(message.owner_principal_type or "", message.owner_principal_name)
    if owner == access.request.principal or access.allows(
        Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
    ):
        return None
    nobody = CreateDelegationTokenRequest.CreatableRenewers(principal_type="", principal_name="")
    message.renewers = [nobody]

    def amend(response: CreateDelegationTokenResponse) -> None:
        assert response.error_code, "the handler took a renewer that is no user"
        if response.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE:
            response.error_code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED

    return amend
