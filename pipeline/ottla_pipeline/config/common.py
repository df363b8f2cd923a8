"""Shared parts of the jobs' configurations: the strict base model, brokers and their security, topics,
triggers.

Used by every job's model and by `command`, which loads a job's YAML file into its model; ConfigError lists
all problems, one per line, as `lake.yaml: kafka.bootstrap: …`. Field names are snake_case here and camelCase
in YAML, as in the custom resources. A client's security is configured once and translated to the settings of
Java clients (Spark's) and of librdkafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ottla.client.registry import RegistryClient

NAME = r"^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$"
TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
_INTERVAL = re.compile(r"^[1-9][0-9]* (millisecond|second|minute|hour|day)s?$")


class Model(BaseModel):
    """The base model. Strict: an unknown key or a value of the wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
    )


def check_addresses(bootstrap: str) -> str:
    """Returns `HOST:PORT[,HOST:PORT…]` unchanged; raises ValueError for anything else."""
    for part in bootstrap.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"must be HOST:PORT[,HOST:PORT…], not {bootstrap!r}")
    return bootstrap


def check_interval(text: str) -> str:
    if not _INTERVAL.match(text):
        raise ValueError(f"must be a number and a unit, like '10 seconds', not {text!r}")
    return text


def check_regex(pattern: str) -> str:
    """Validates a topic pattern; Java's and Python's syntax agree for topic names."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


def as_text(value: object) -> object:
    """Converts the values of client settings to text: YAML writers omit quotes."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: str(item).lower()
        if isinstance(item, bool)
        else str(item)
        if isinstance(item, int | float)
        else item
        for key, item in value.items()
    }


Interval = Annotated[str, AfterValidator(check_interval)]
Settings = Annotated[dict[str, str], BeforeValidator(as_text)]
Pattern = Annotated[str, Field(min_length=1), AfterValidator(check_regex)]
TopicName = Annotated[str, Field(pattern=TOPIC)]


class Sasl(Model):
    """A user and its password, in a file (a mounted Secret) or in the configuration."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    """The SASL mechanism."""
    username: str = Field(min_length=1)
    """The user."""
    password: str | None = None
    """The password; or:"""
    password_file: str | None = None
    """The file with the password."""

    @model_validator(mode="after")
    def _one_password(self) -> Sasl:
        if (self.password is None) == (self.password_file is None):
            raise ValueError("give password or passwordFile, one of the two")
        return self

    def secret(self) -> str:
        """The password. Raises OSError if its file cannot be read."""
        if self.password is not None:
            return self.password
        assert self.password_file is not None
        return Path(self.password_file).read_text().rstrip("\n")

    def jaas(self) -> str:
        """Java's `sasl.jaas.config`."""
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (self.username, self.secret()))
        return 'org.apache.kafka.common.security.{} required username="{}" password="{}";'.format(
            module, *quoted
        )


class Tls(Model):
    """PEM files: the trusted authorities, and the client's certificate and key. Without `ca`, the system's
    authorities."""

    ca: str | None = None
    """File with the trusted authorities."""
    certificate: str | None = None
    """File with the client's certificate."""
    key: str | None = None
    """File with its private key."""
    verify_host_name: bool = True
    """Whether the brokers' certificates must have their host names."""

    @model_validator(mode="after")
    def _a_pair(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        return self


class KafkaConfig(Model):
    """Bootstrap servers and credentials. `options` are settings of Java's clients, which Spark's source
    and sink use; `librdkafkaOptions` are those of confluent-kafka, for jobs that use it."""

    bootstrap: Annotated[str, AfterValidator(check_addresses)]
    """Bootstrap servers, HOST:PORT, separated by commas."""
    sasl: Sasl | None = None
    """The login; without it none."""
    tls: Tls | None = None
    """TLS; without it plaintext."""
    options: Settings = {}
    """Settings of Java's clients."""
    librdkafka_options: Settings = {}
    """Settings of confluent-kafka."""

    @property
    def protocol(self) -> str:
        """The security protocol of the listener, derived from `sasl` and `tls`."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")

    def java(self) -> dict[str, str]:
        """Settings of Java's clients. Raises OSError if a file of `sasl` or `tls` cannot be read."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.sasl or self.tls:
            found["security.protocol"] = self.protocol
        if self.sasl:
            found |= {"sasl.mechanism": self.sasl.mechanism, "sasl.jaas.config": self.sasl.jaas()}
        if self.tls:
            found |= _java_tls(self.tls)
        return found | self.options

    def spark_options(self) -> dict[str, str]:
        """The settings of Java's clients as options of Spark's Kafka source and sink."""
        return {f"kafka.{name.removeprefix('kafka.')}": value for name, value in self.java().items()}

    def librdkafka(self) -> dict[str, str]:
        """Settings of confluent-kafka's clients."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.sasl or self.tls:
            found["security.protocol"] = self.protocol
        if self.sasl:
            found["sasl.mechanism"] = self.sasl.mechanism
            found |= {"sasl.username": self.sasl.username, "sasl.password": self.sasl.secret()}
        if self.tls:
            files = {
                "ssl.ca.location": self.tls.ca,
                "ssl.certificate.location": self.tls.certificate,
                "ssl.key.location": self.tls.key,
            }
            found |= {name: file for name, file in files.items() if file is not None}
            found["ssl.endpoint.identification.algorithm"] = "https" if self.tls.verify_host_name else "none"
        return found | self.librdkafka_options


def _java_tls(tls: Tls) -> dict[str, str]:
    """KIP-651: PEM in the settings themselves, so that executors need no files of the driver's."""
    found = {"ssl.endpoint.identification.algorithm": "https" if tls.verify_host_name else ""}
    if tls.ca is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": Path(tls.ca).read_text()}
    if tls.certificate is not None and tls.key is not None:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(tls.certificate).read_text(),
            "ssl.keystore.key": Path(tls.key).read_text(),
        }
    return found


class RegistryConfig(Model):
    """A schema registry. Requests go to the first URL that responds."""

    urls: Annotated[list[Annotated[str, Field(pattern=r"^https?://[^/?#]+[^?#]*$")]], Field(min_length=1)]
    """Its addresses."""
    username: str | None = None
    """The user of basic authentication."""
    password_file: str | None = None
    """The file with the user's password."""
    ca: str | None = None
    """File with the trusted authorities."""

    @model_validator(mode="after")
    def _a_pair(self) -> RegistryConfig:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and passwordFile go together")
        return self

    def client(self) -> RegistryClient:
        """A client of this registry. Raises ValueError for settings that the client rejects, OSError for a
        file that cannot be read."""
        options: dict[str, str] = {}
        if self.username is not None and self.password_file is not None:
            password = Path(self.password_file).read_text().rstrip()
            options["basic.auth.user.info"] = f"{self.username}:{password}"
        if self.ca is not None:
            options["ssl.ca.location"] = self.ca
        return RegistryClient(self.urls, options)


class TopicsConfig(Model):
    """Topics by name or by pattern (a Java regular expression of the whole name), one of the two."""

    topics: Annotated[list[TopicName], Field(min_length=1)] | None = None
    """Topics by name."""
    topic_pattern: Pattern | None = None
    """Topics by a regular expression of the whole name."""

    @model_validator(mode="after")
    def _one_of_two(self) -> TopicsConfig:
        if (self.topics is None) == (self.topic_pattern is None):
            raise ValueError("give topics or topicPattern, one of the two")
        return self

    def fits(self, topic: str) -> bool:
        """Whether the topic is selected."""
        if self.topics is not None:
            return topic in self.topics
        assert self.topic_pattern is not None
        return re.fullmatch(self.topic_pattern, topic) is not None

    def subscription(self) -> dict[str, str]:
        """The selection as options of Spark's Kafka source."""
        if self.topics is not None:
            return {"subscribe": ",".join(self.topics)}
        assert self.topic_pattern is not None
        # Spark would take a topic that has the pattern anywhere in its name.
        return {"subscribePattern": f"^(?:{self.topic_pattern})$"}


class Trigger(Model):
    """When batches run: every `interval`; or, with `availableNow`, until all present records have been
    read."""

    interval: Interval = "10 seconds"
    """The time between the beginnings of batches."""
    available_now: bool = False
    """Process all present records, then stop."""

    def write_options(self) -> dict[str, Any]:
        """Arguments of `DataStreamWriter.trigger`."""
        return {"availableNow": True} if self.available_now else {"processingTime": self.interval}


class SparkConfig(Model):
    """Settings of the Spark session, which the job's own settings override; and the packages of
    `ottla_pipeline.spark.EXTRAS` that the job needs."""

    settings: Settings = {}
    """Spark's settings by name."""
    packages: list[Literal["iceberg", "postgresql", "sqlite"]] = []
    """Packages by name, which Spark downloads."""


class JobConfig(Model):
    """Common to all jobs. `checkpoint` is a folder on any file system of Spark's Hadoop; it and the name
    belong to this job only. The job commits its progress as offsets of the consumer group `group`."""

    JOB: ClassVar[str] = "job"

    name: Annotated[str, Field(pattern=NAME, max_length=100)]
    """The job's name: part of its group, its metrics and its log."""
    kafka: KafkaConfig
    """The cluster that is read."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """The folder of Spark's checkpoint, of this job alone."""
    group: Annotated[str, Field(min_length=1, max_length=249)] | None = None
    """The consumer group that shows the progress. Default: `ottla-JOB-NAME`."""
    trigger: Trigger = Trigger()
    """When batches run."""
    max_offsets_per_trigger: Annotated[int, Field(ge=1)] | None = None
    """The most records of a batch; without it, all that are there."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a job without a checkpoint starts."""
    spark: SparkConfig = SparkConfig()
    """Settings and packages of Spark."""

    @property
    def consumer_group(self) -> str:
        """The consumer group of the job's progress."""
        return self.group or f"ottla-{self.JOB}-{self.name}"

    def source_options(self, topics: TopicsConfig) -> dict[str, str]:
        """Options of Spark's Kafka source. Records that were deleted before they were read stop the job."""
        limit = self.max_offsets_per_trigger
        return {
            **self.kafka.spark_options(),
            **topics.subscription(),
            "startingOffsets": self.starting_offsets,
            "failOnDataLoss": "true",
            **({"maxOffsetsPerTrigger": str(limit)} if limit is not None else {}),
        }


C = TypeVar("C", bound=BaseModel)

_MESSAGES = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
}


class ConfigError(Exception):
    """An invalid configuration; the message has one line per problem."""


def load(path: Path, model: type[C]) -> C:
    """The file as `model`. Raises ConfigError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold a mapping of keys")
    return validate(raw, model, str(path))


def validate(raw: dict[str, Any], model: type[C], where: str) -> C:
    """`raw` as `model`; `where` is the prefix of each line of the ConfigError."""
    try:
        return model.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = sorted({f"{where}: {line}" for line in problems(error, model)})
        raise ConfigError("\n".join(lines)) from None


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per problem: the key's path as written in YAML, and the allowed values."""
    found = []
    for one in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            message = f"unknown key{_known(model, one['loc'])}"
        else:
            message = _MESSAGES.get(one["type"], one["msg"].removeprefix("Value error, "))
        found.append(f"{path}: {message}" if path else message)
    return found


def _known(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The keys that are valid beside the unknown one, if the path to it consists of plain models."""
    for part in loc[:-1]:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        inner = fields[part].annotation if isinstance(part, str) and part in fields else None
        options = [inner, *getattr(inner, "__args__", ())]
        models = [t for t in options if isinstance(t, type) and issubclass(t, BaseModel)]
        if len(models) != 1:
            return ""
        model = models[0]
    return "; known are " + ", ".join(field.alias or name for name, field in model.model_fields.items())
