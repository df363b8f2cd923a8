"""Errors of the registry's REST API, with Confluent's codes.

Raised by `decisions`, `schemas` and `store`; `app` turns them into responses.
"""

from __future__ import annotations


class Refused(Exception):
    """`code` is the registry's error code; the HTTP status is its first three digits."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


class CheckFailed(Refused):
    """A schema check exceeded its time or memory; repeating it would fail again."""

    def __init__(self, reason: str) -> None:
        super().__init__(42201, f"Invalid schema: {reason}")


def subject_not_found(subject: str) -> Refused:
    return Refused(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> Refused:
    return Refused(40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | None = None) -> Refused:
    return Refused(40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def guid_not_found(guid: str) -> Refused:
    return Refused(40403, f"Schema {guid} not found")


def unauthorized() -> Refused:
    return Refused(40101, "Unauthorized: needs a user's name and password, or a client certificate.")


def denied(user: str, operation: str, subject: str) -> Refused:
    return Refused(40301, f"User {user} is denied operation {operation} on Subject: {subject}")


def subject_soft_deleted(subject: str) -> Refused:
    return Refused(40404, f"Subject '{subject}' is deleted already; permanent=true removes it for good.")


def subject_not_soft_deleted(subject: str) -> Refused:
    return Refused(40405, f"Subject '{subject}' must be deleted first without permanent=true.")


def version_soft_deleted(subject: str, version: int) -> Refused:
    return Refused(
        40406,
        f"Subject '{subject}' Version {version} is deleted already; permanent=true removes it for good.",
    )


def version_not_soft_deleted(subject: str, version: int) -> Refused:
    return Refused(
        40407, f"Subject '{subject}' Version {version} must be deleted first without permanent=true."
    )


def config_not_found(subject: str) -> Refused:
    return Refused(40408, f"Subject '{subject}' has no compatibility level of its own.")


def mode_not_found(subject: str) -> Refused:
    return Refused(40409, f"Subject '{subject}' has no mode of its own.")


def incompatible(subject: str, messages: list[str]) -> Refused:
    return Refused(
        409, f"The schema is not compatible with earlier ones of subject '{subject}': {'; '.join(messages)}"
    )


def invalid_schema(reason: str) -> Refused:
    return Refused(42201, f"Invalid schema: {reason}")


def invalid_version(version: str) -> Refused:
    return Refused(42202, f"Version '{version}': must be a number from 1 to 2147483647, -1 or latest.")


def not_permitted(reason: str) -> Refused:
    return Refused(42205, reason)


def referenced(subject: str, version: int) -> Refused:
    return Refused(42206, f"Subject '{subject}' Version {version} is referred to by other schemas.")


def invalid_subject(subject: str, reason: str) -> Refused:
    return Refused(42208, f"Subject '{subject}': {reason}")
