"""Authorization checks of the APIs about settings, descriptions of the cluster and delegation tokens.

Called through `ottla.server.authorization.checks_by_api`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.security.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.security.principals import Principal
from ottla.server.authorization.auth_helper import DENIED_ERRORS, DENIED_MESSAGES, AuthHelper
from ottla.server.authorization.checks import AuthorizationCheck, CheckResult, ResponseChange, error_rows
from ottla.server.authorization.topics import cluster_operations, require_controller

CLUSTER, TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC
_TOPIC_CONFIG: Final = 2
_CLUSTER_RESOURCE_TYPES: Final = (4, 8, 16)  # brokers, their loggers, client metrics


def configs(operation: Operation, response_field: str, *, with_text: bool) -> AuthorizationCheck:
    """Settings of a topic need `operation` on the topic, settings of brokers on the cluster. The handler
    rejects duplicate resources and unknown resource types."""

    def check(auth: AuthHelper, message: Any) -> CheckResult:
        times = Counter((each.resource_type, each.resource_name) for each in message.resources)
        denied: dict[ErrorCode, list[Any]] = {}
        for each in message.resources:
            if each.resource_type == _TOPIC_CONFIG:
                kind, name = TOPIC, each.resource_name
            elif each.resource_type in _CLUSTER_RESOURCE_TYPES:
                kind, name = CLUSTER, CLUSTER_NAME
            else:
                continue
            alone = (
                operation is Operation.DESCRIBE_CONFIGS or times[each.resource_type, each.resource_name] == 1
            )
            if alone and not auth.authorize(operation, kind, name):
                denied.setdefault(DENIED_ERRORS[kind], []).append(each)
        if not denied:
            return None
        errors: list[Any] = []
        for code, resources in denied.items():
            detail = DENIED_MESSAGES[code] if with_text else None
            errors += error_rows(auth, message, "resources", response_field, resources, code, detail)
        refused = {id(each) for resources in denied.values() for each in resources}
        message.resources = [each for each in message.resources if id(each) not in refused]

        def amend(response: Any) -> None:
            getattr(response, response_field).extend(errors)

        return amend

    return check


def describe_cluster(auth: AuthHelper, message: m.DescribeClusterRequest) -> ResponseChange | None:
    """No authorization needed; the authorized operations need DESCRIBE on the cluster."""
    if not message.include_cluster_authorized_operations:
        return None

    def amend(response: m.DescribeClusterResponse) -> None:
        if not response.error_code:
            response.cluster_authorized_operations = cluster_operations(auth)

    return amend


def describe_log_dirs(auth: AuthHelper, message: m.DescribeLogDirsRequest) -> CheckResult:
    """DESCRIBE on the cluster."""
    if auth.authorize_cluster(Operation.DESCRIBE):
        return None
    return m.DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def describe_scram(auth: AuthHelper, message: m.DescribeUserScramCredentialsRequest) -> CheckResult:
    """DESCRIBE on the cluster; the error response contains no user names."""
    if auth.authorize_cluster(Operation.DESCRIBE):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    row = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return m.DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=None,
        results=[row(error_code=code, error_message=None) for _ in message.users or ()],
    )


def alter_scram(is_controller: Callable[[], bool]) -> AuthorizationCheck:
    """ALTER on the cluster. Brokers other than the controller respond NOT_CONTROLLER first."""

    def check(auth: AuthHelper, message: m.AlterUserScramCredentialsRequest) -> CheckResult:
        require_controller(is_controller)
        if auth.authorize_cluster(Operation.ALTER):
            return None
        names = dict.fromkeys(each.name for each in message.deletions)
        names |= dict.fromkeys(each.name for each in message.upsertions)
        row = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return m.AlterUserScramCredentialsResponse(
            results=[row(user=name, error_code=code, error_message=None) for name in names]
        )

    return check


def write_txn_markers(auth: AuthHelper, message: m.WriteTxnMarkersRequest) -> None:
    """CLUSTER_ACTION on the cluster (brokers), or ALTER (tools that abort a hanging transaction)."""
    if not auth.authorize_cluster(Operation.ALTER, log_denied=False):
        auth.require_cluster(Operation.CLUSTER_ACTION)


def describe_tokens(auth: AuthHelper, message: m.DescribeDelegationTokenRequest) -> ResponseChange:
    """Owners and renewers see their tokens; others need DESCRIBE on the token, or DESCRIBE_TOKENS on its
    owner."""
    requester = auth.request.principal

    def is_visible(token: m.DescribeDelegationTokenResponse.DescribedDelegationToken) -> bool:
        owner = Principal(token.principal_type, token.principal_name)
        renewers = [Principal(each.principal_type, each.principal_name) for each in token.renewers]
        return (
            requester == owner
            or requester in renewers
            or auth.authorize(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
            or auth.authorize(Operation.DESCRIBE_TOKENS, ResourceType.USER, str(owner))
        )

    def amend(response: m.DescribeDelegationTokenResponse) -> None:
        response.tokens = [token for token in response.tokens if is_visible(token)]

    return amend


def create_token(auth: AuthHelper, message: m.CreateDelegationTokenRequest) -> ResponseChange | None:
    """CREATE_TOKENS on the owner, unless the owner is the requester.

    In Kafka the check whether the connection may request tokens comes first, and the handler makes it. So a
    denied request continues with an invalid renewer: the handler responds with the connection's error or with
    INVALID_PRINCIPAL_TYPE, which is replaced here.
    """
    if not message.owner_principal_name:
        return None
    owner = Principal(message.owner_principal_type or "", message.owner_principal_name)
    if owner == auth.request.principal or auth.authorize(
        Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
    ):
        return None
    invalid = m.CreateDelegationTokenRequest.CreatableRenewers(principal_type="", principal_name="")
    message.renewers = [invalid]

    def amend(response: m.CreateDelegationTokenResponse) -> None:
        assert response.error_code, "the handler accepted an invalid renewer"
        if response.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE:
            response.error_code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED

    return amend
