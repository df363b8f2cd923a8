"""SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client import errors
from ottla.client.admin.network import AdminNetwork, outcome, raise_error
from ottla.client.admin_types import Node, Results, ScramDeletion, ScramUpsertion
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.security.scram import ITERATIONS_MIN, TYPES, new_nonce, salted_password

_CODES = {mechanism: code for code, mechanism in TYPES.items()}


async def describe_user_scram_credentials(
    network: AdminNetwork, users: Iterable[str] | None = None
) -> Results[str, dict[str, int]]:
    """The mechanisms and iterations of these users' credentials, None: of all users. Raises KafkaError for an
    error of the whole request."""
    row = m.DescribeUserScramCredentialsRequest.UserName
    wanted = None if users is None else [row(name=name) for name in users]
    response = await network.any_broker(m.DescribeUserScramCredentialsRequest(users=wanted))
    raise_error(response.error_code, response.error_message)
    return Results(
        {
            result.user: outcome(result.error_code, result.error_message, result.user)
            or {
                TYPES[info.mechanism]: info.iterations
                for info in result.credential_infos
                if info.mechanism in TYPES
            }
            for result in response.results
        }
    )


async def alter_user_scram_credentials(
    network: AdminNetwork, alterations: Iterable[ScramUpsertion | ScramDeletion]
) -> Results[str, None]:
    """Create, replace and delete credentials; results by user. If one change of a user fails, none is
    made."""
    wanted = list(alterations)
    request = m.AlterUserScramCredentialsRequest
    rows: Mapping[str, list[Any]] = {each.user: [] for each in wanted}
    unknown: dict[str, ClientError] = {}
    for each in wanted:
        code = _CODES.get(each.mechanism)
        if code is None:
            unknown[each.user] = errors.UnsupportedSaslMechanismError(
                f"{each.mechanism}: must be one of {', '.join(_CODES)}"
            )
        elif isinstance(each, ScramDeletion):
            rows[each.user].append(request.ScramCredentialDeletion(name=each.user, mechanism=code))
        else:
            salt = new_nonce().encode()
            salted = await asyncio.to_thread(
                salted_password, each.mechanism, each.password, salt, each.iterations
            )
            rows[each.user].append(
                request.ScramCredentialUpsertion(
                    name=each.user,
                    mechanism=code,
                    iterations=each.iterations,
                    salt=salt,
                    salted_password=salted,
                )
            )

    async def ask(node: Node, users: list[str]) -> dict[str, ClientError | None]:
        share = [row for user in users for row in rows[user]]
        deletion = request.ScramCredentialDeletion
        response = await network.send_to(
            node,
            request(
                deletions=[row for row in share if isinstance(row, deletion)],
                upsertions=[row for row in share if not isinstance(row, deletion)],
            ),
        )
        return {r.user: outcome(r.error_code, r.error_message, r.user) for r in response.results}

    found = await network.at_controller([user for user in rows if user not in unknown], ask)
    return Results({**found.outcomes(), **unknown})


async def set_scram_credential(
    network: AdminNetwork, user: str, mechanism: str, password: str, iterations: int = ITERATIONS_MIN
) -> None:
    """Create or replace one credential. Raises KafkaError."""
    upsertion = ScramUpsertion(user, mechanism, password, iterations)
    (await alter_user_scram_credentials(network, [upsertion])).raise_first()


async def delete_scram_credentials(network: AdminNetwork, user: str, mechanisms: Sequence[str]) -> None:
    """Delete credentials of a user. Raises KafkaError: RESOURCE_NOT_FOUND if one does not exist; then none is
    deleted."""
    deletions = [ScramDeletion(user, mechanism) for mechanism in mechanisms]
    (await alter_user_scram_credentials(network, deletions)).raise_first()
