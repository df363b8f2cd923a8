"""DescribeUserScramCredentials 0 and AlterUserScramCredentials 0 (KIP-554).

Behaviour: credentials are settings of users, stored in /config/users beside their quotas. Any broker
describes them, as stored; only the controller alters them (NOT_CONTROLLER). The changes of one user succeed
or fail together, with one result. Passwords arrive salted; only the keys derived from them are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from ottla.metadata.client_quotas import desanitize, sanitize
from ottla.metadata.dynamic_configs import USERS, DynamicConfigs
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security import scram
from ottla.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, TYPES, ScramCredential
from ottla.server.dispatch.dispatcher import Request, Route

log = logging.getLogger(__name__)

_EMPTY_NAME = "Username must not be empty"
_UNKNOWN_MECHANISM = "Unknown SCRAM mechanism"

Described = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Altered = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
Deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion


class ScramCredentialsHandler:
    def __init__(self, stored: DynamicConfigs, is_controller: Callable[[], bool]) -> None:
        self._stored = stored
        self._is_controller = is_controller
        # Serializes read, change and write: concurrent requests would lose changes.
        self._alone = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route(m.DescribeUserScramCredentialsRequest, self.describe, _describe_error),
            Route(m.AlterUserScramCredentialsRequest, self.alter, _alter_error),
        ]

    # --- describe -----------------------------------------------------------------------------------

    async def describe(self, request: Request) -> m.DescribeUserScramCredentialsResponse:
        message = request.decode(m.DescribeUserScramCredentialsRequest)
        if message.users:
            results = await self._describe_named([user.name for user in message.users])
        else:
            results = await self._describe_all()
        return m.DescribeUserScramCredentialsResponse(results=results)

    async def _describe_all(self) -> list[Described]:
        found = {}
        for node in await self._stored.entities(USERS):
            user = desanitize(node)
            if user is not None and "/" not in node:
                found[user] = _described(user, await self._stored.entity_config(USERS, node))
        return [result for _, result in sorted(found.items()) if result is not None]

    async def _describe_named(self, users: list[str]) -> list[Described]:
        counts = Counter(users)
        results = []
        for user in dict.fromkeys(users):
            if not user:
                results.append(_not_described(user, ErrorCode.RESOURCE_NOT_FOUND, _EMPTY_NAME))
            elif counts[user] > 1:
                words = (
                    f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
                )
                results.append(_not_described(user, ErrorCode.DUPLICATE_RESOURCE, words))
            else:
                result = _described(user, await self._stored.entity_config(USERS, sanitize(user)))
                words = f"Attempt to describe a user credential that does not exist: {user}"
                results.append(result or _not_described(user, ErrorCode.RESOURCE_NOT_FOUND, words))
        return results

    # --- alter --------------------------------------------------------------------------------------

    async def alter(self, request: Request) -> m.AlterUserScramCredentialsResponse:
        if not self._is_controller():
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        message = request.decode(m.AlterUserScramCredentialsRequest)
        changes: dict[str, list[Deletion | Upsertion]] = {}
        wanted: list[Deletion | Upsertion] = [*message.deletions, *message.upsertions]
        for change in wanted:
            changes.setdefault(change.name, []).append(change)
        refused, done = [], []
        async with self._alone:
            for user, of_user in changes.items():
                result = Altered(user=user)
                try:
                    await self._alter_user(user, of_user)
                except KafkaError as error:
                    result.error_code = error.code
                    result.error_message = error.message or error.code.message
                    refused.append(result)
                else:
                    done.append(result)
        return m.AlterUserScramCredentialsResponse(results=refused + done)

    async def _alter_user(self, user: str, changes: list[Deletion | Upsertion]) -> None:
        _check(user, changes)
        settings = await self._stored.entity_config(USERS, sanitize(user))
        deletions = [c for c in changes if isinstance(c, Deletion)]
        if any(TYPES[deletion.mechanism] not in settings for deletion in deletions):
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
        for change in changes:
            mechanism = TYPES[change.mechanism]
            if isinstance(change, Deletion):
                del settings[mechanism]
            else:
                made = scram.credential(
                    mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations
                )
                settings[mechanism] = made.to_text()
        await self._stored.alter_entity(USERS, sanitize(user), settings)


def _check(user: str, changes: Iterable[Deletion | Upsertion]) -> None:
    """Raises KafkaError; of several problems that of the last upsertion, as in Kafka."""
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, _EMPTY_NAME)
    problem: KafkaError | None = None
    for change in changes:
        if change.mechanism not in TYPES:
            problem = KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, _UNKNOWN_MECHANISM)
        elif isinstance(change, Upsertion) and change.iterations > ITERATIONS_MAX:
            problem = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        elif isinstance(change, Upsertion) and change.iterations < ITERATIONS_MIN:
            problem = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if problem is not None:
        raise problem
    if max(Counter(change.mechanism for change in changes).values()) > 1:
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
        )


def _described(user: str, settings: dict[str, str]) -> Described | None:
    """The result of a user; None for one without credentials."""
    result = Described(user=user)
    for kind, mechanism in TYPES.items():
        text = settings.get(mechanism)
        if text is None:
            continue
        try:
            iterations = ScramCredential.of_text(text).iterations
        except ValueError as problem:
            log.error("Invalid %s credential of user %s: %s", mechanism, user, problem)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            return _not_described(user, code, code.message)
        info = m.DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=kind, iterations=iterations)
        result.credential_infos.append(info)
    return result if result.credential_infos else None


def _not_described(user: str, code: ErrorCode, words: str) -> Described:
    return Described(user=user, error_code=code, error_message=words)


def _describe_error(
    message: m.DescribeUserScramCredentialsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeUserScramCredentialsResponse:
    words = detail or code.message
    response = m.DescribeUserScramCredentialsResponse(error_code=code, error_message=words)
    for user in message.users or ():
        response.results.append(_not_described(user.name, code, words))
    return response


def _alter_error(
    message: m.AlterUserScramCredentialsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AlterUserScramCredentialsResponse:
    changes: list[Deletion | Upsertion] = [*message.deletions, *message.upsertions]
    users = dict.fromkeys(change.name for change in changes)
    words = detail or code.message
    results = [Altered(user=user, error_code=code, error_message=words) for user in users]
    return m.AlterUserScramCredentialsResponse(results=results)
