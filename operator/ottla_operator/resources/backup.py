"""`spec.backup` and `spec.bootstrap` of a BrokerCluster: when and to where its metadata is backed up, and the
backup that a new cluster starts from; and the statuses of both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import Field

from ottla_operator.resources.common import Model, Name, Problem, Rule, rules

DESTINATION = r"^(s3|gs|az|file)://[^\s]+$"
RECOVERY_REFUSED: Final = "ClusterNotEmpty"
"""The reason of the condition Recovered for a cluster that has topics of its own."""
_CRON = r"^\S+( +\S+){4}$"
_ENDPOINT = r"^https?://\S+$"
_CREDENTIALS_RULE = Rule(
    "credentialsSecret is required: a backup never uses the credentials of the operator",
    "has(self.credentialsSecret)",
)
_ENDPOINT_TEXT = (
    "The endpoint of another store with S3's API, such as http://minio.storage:9000. Default: that of the "
    "provider."
)
_CREDENTIALS_TEXT = (
    "A Secret in the same namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "GOOGLE_SERVICE_ACCOUNT_KEY (the key as JSON), or AZURE_STORAGE_ACCOUNT_KEY. Required on Kubernetes; "
    "default for `ottla up`: the environment."
)


class BackupSpec(Model):
    model_config = rules(
        Rule("destination file:// is for `ottla up` only", "!self.destination.startsWith('file:')"),
        _CREDENTIALS_RULE,
    )

    destination: Annotated[str, Field(pattern=DESTINATION, max_length=1024)] = Field(
        description="The folder of the backups: s3://BUCKET/PATH, gs://BUCKET/PATH or "
        "az://ACCOUNT/CONTAINER/PATH; for `ottla up`, file:///PATH, too."
    )
    endpoint: str | None = Field(default=None, pattern=_ENDPOINT, max_length=1024, description=_ENDPOINT_TEXT)
    credentials_secret: Name | None = Field(default=None, description=_CREDENTIALS_TEXT)
    schedule: Annotated[str, Field(pattern=_CRON, max_length=100)] | None = Field(
        default=None,
        description="When, in UTC: minute, hour, day of month, month and day of week, as for cron. Default: "
        "on request only.",
    )
    retention: int = Field(
        default=30,
        ge=1,
        le=10_000,
        description="The number of backups that are kept; older ones are deleted.",
    )


class BackupStatus(Model):
    last_successful_at: str = Field(default="", description="When the last backup was taken.")
    last_object: str = Field(default="", description="The URL of the last backup.")
    last_attempt_at: str = Field(default="", description="When a backup was tried last.")
    message: str = Field(default="", description="What is in the last backup, or why it failed.")
    next_at: str = Field(default="", description="When the next backup is due.")
    handled_request: str = Field(default="", description="The last request for a backup that was answered.")


class RecoverySpec(Model):
    model_config = rules(
        Rule("source file:// is for `ottla up` only", "!self.source.startsWith('file:')"),
        _CREDENTIALS_RULE,
    )

    source: Annotated[str, Field(pattern=DESTINATION, max_length=1024)] = Field(
        description="A backup, or a folder of which the newest is taken: s3://BUCKET/PATH, gs://BUCKET/PATH "
        "or az://ACCOUNT/CONTAINER/PATH; for `ottla up`, file:///PATH, too."
    )
    name: Name | None = Field(
        default=None,
        description="In a folder: only backups of this cluster, by the first part of their names. Default: "
        "of all.",
    )
    endpoint: str | None = Field(default=None, pattern=_ENDPOINT, max_length=1024, description=_ENDPOINT_TEXT)
    credentials_secret: Name | None = Field(default=None, description=_CREDENTIALS_TEXT)


class Bootstrap(Model):
    recovery: RecoverySpec | None = Field(
        default=None,
        description="A backup that is restored into the new cluster, once, when its brokers are ready. "
        "Topics, Users, Quotas, ConsumerGroups and Pipelines wait for it. A cluster with topics is refused. "
        "Default: the cluster starts empty.",
    )


class RecoveryStatus(Model):
    """The recovery: `source` is found first, and then restored, in as many attempts as it takes."""

    source: str = Field(default="", description="The URL of the backup that is restored.")
    started_at: str = Field(default="", description="When the restoration began.")
    completed_at: str = Field(default="", description="When it was completed; the operator restores once.")
    last_attempt_at: str = Field(default="", description="When an attempt ended last.")
    message: str = Field(default="", description="What is in the backup, or why the last attempt failed.")
    left: list[str] = Field(
        default_factory=list, description="What was left out, such as passwords and offsets without records."
    )


def backup_problems(spec: BackupSpec | None, path: str) -> Iterator[Problem]:
    """Errors that the schema cannot express."""
    if spec is None or spec.schedule is None:
        return
    problem = schedule_problem(spec.schedule)
    if problem:
        yield Problem(f"{path}.schedule", f"{spec.schedule!r} is not allowed: {problem}")


def schedule_problem(schedule: str) -> str:
    """Why this is no cron schedule, or ""."""
    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(schedule, datetime(2024, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as error:
        return f"{error}" or "it is never due"
    return ""
