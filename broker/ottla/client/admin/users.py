"""SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.client.admin.base import Family
from ottla.client.routing import raise_first
from ottla.protocol import messages as m
from ottla.security.scram import ITERATIONS_MIN, TYPES, new_nonce, salted_password

_CODES = {mechanism: code for code, mechanism in TYPES.items()}


class Users(Family):
    async def describe_scram_credentials(self) -> dict[str, dict[str, int]]:
        """Every user with credentials: mechanism to iterations. What cannot be read is left out."""
        response = await self._brokers.any(m.DescribeUserScramCredentialsRequest(users=None))
        raise_first([(response.error_code, response.error_message)])
        return {
            result.user: {
                TYPES[info.mechanism]: info.iterations
                for info in result.credential_infos
                if info.mechanism in TYPES
            }
            for result in response.results
        }

    async def set_scram_credential(
        self, user: str, mechanism: str, password: str, iterations: int = ITERATIONS_MIN
    ) -> None:
        """Make or replace one credential; the password leaves this process salted alone."""
        salt = new_nonce().encode()
        salted = await asyncio.to_thread(salted_password, mechanism, password, salt, iterations)
        alter = m.AlterUserScramCredentialsRequest
        await self._alter_credentials(
            alter(
                upsertions=[
                    alter.ScramCredentialUpsertion(
                        name=user,
                        mechanism=_CODES[mechanism],
                        iterations=iterations,
                        salt=salt,
                        salted_password=salted,
                    )
                ]
            )
        )

    async def delete_scram_credentials(self, user: str, mechanisms: Sequence[str]) -> None:
        """Raises KafkaError: RESOURCE_NOT_FOUND when one of them is not there; then none is deleted."""
        alter = m.AlterUserScramCredentialsRequest
        deletions = [
            alter.ScramCredentialDeletion(name=user, mechanism=_CODES[mechanism]) for mechanism in mechanisms
        ]
        await self._alter_credentials(alter(deletions=deletions))

    async def _alter_credentials(self, request: m.AlterUserScramCredentialsRequest) -> None:
        response = await self._brokers.controller(request)
        raise_first((result.error_code, result.error_message) for result in response.results)
