"""Credentials and ACLs over `ottla.client.admin`: the part of the `Kafka` port that Users need.

Called by `platform.kafka`, which makes its errors those of the port.
"""

from __future__ import annotations

from ottla.client.admin import AdminClient
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.acls import AclBinding, AclFilter, EntryFilter, PatternFilter
from ottla_operator.planning.observed import AccessState
from ottla_operator.planning.steps import (
    CreateAcls,
    DeleteAcls,
    DeleteScramCredential,
    SetScramCredential,
)
from ottla_operator.planning.users import MECHANISM

AccessStep = SetScramCredential | DeleteScramCredential | CreateAcls | DeleteAcls


async def observe_access(admin: AdminClient) -> AccessState:
    """Raises KafkaError, UnsupportedApi and what an unreachable cluster raises."""
    scram = dict(await admin.describe_user_scram_credentials())
    try:
        bindings = await admin.describe_acls()
    except KafkaError as error:
        if error.code != ErrorCode.SECURITY_DISABLED:
            raise
        return AccessState(scram, None)
    acls: dict[str, set[AclBinding]] = {}
    for binding in bindings:
        acls.setdefault(binding.entry.principal, set()).add(binding)
    return AccessState(scram, {principal: frozenset(found) for principal, found in acls.items()})


async def take_access_step(admin: AdminClient, step: AccessStep) -> None:
    match step:
        case SetScramCredential():
            await admin.set_scram_credential(step.user, MECHANISM, step.password, step.iterations)
        case DeleteScramCredential():
            try:
                await admin.delete_scram_credentials(step.user, [MECHANISM])
            except KafkaError as error:
                if error.code != ErrorCode.RESOURCE_NOT_FOUND:
                    raise
        case CreateAcls():
            (await admin.create_acls(step.bindings)).raise_first()
        case DeleteAcls():
            removed = await admin.delete_acls([_exactly(binding) for binding in step.bindings])
            for found in removed.raise_first().values():
                found.raise_first()


def _exactly(binding: AclBinding) -> AclFilter:
    return AclFilter(PatternFilter(*binding.pattern), EntryFilter(*binding.entry))
