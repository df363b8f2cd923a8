"""What the jobs' configurations share: the strict base model, brokers and their security, topics, triggers.

Used by every job's own model and by `config.loading`. Field names are snake_case here and camelCase in YAML,
as in the custom resources. A client's security is declared once and given to Java clients (Spark's) and to
librdkafka in the as_text of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from ottla.client.registry import RegistryClient

NAME = r"^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$"
TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
_INTERVAL = re.compile(r"^[1-9][0-9]* (millisecond|second|minute|hour|day)s?$")


class Model(BaseModel):
    """Strict: an unknown key or a value of the wrong type is an error, never a guess."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
    )


def check_addresses(bootstrap: str) -> str:
    """`HOST:PORT[,HOST:PORT…]` as it stands; ValueError for anything else."""
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
    """Java's and Python's regular expressions agree on what topics are named by."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


def as_text(value: object) -> object:
    """A client's setting as the text that it is in Kafka: YAML writers leave quotes away."""
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
    """A user and where the password is: in a file (a mounted Secret), or here."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: str = Field(min_length=1)
    password: str | None = None
    password_file: str | None = None

    @model_validator(mode="after")
    def _one_password(self) -> Sasl:
        if (self.password is None) == (self.password_file is None):
            raise ValueError("give password or passwordFile, one of the two")
        return self

    def secret(self) -> str:
        """The password; OSError when its file cannot be read."""
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
    """PEM files: who is believed, and, for a client certificate, who we are. Without `ca`, whom the system
    believes."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify_host_name: bool = True

    @model_validator(mode="after")
    def _a_pair(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        return self


class KafkaConfig(Model):
    """Brokers to start from, and how to log in. `options` are settings of Java's clients, which Spark's
    source and sink use; `librdkafkaOptions` those of confluent-kafka, where a job has need of it."""

    bootstrap: Annotated[str, AfterValidator(check_addresses)]
    sasl: Sasl | None = None
    tls: Tls | None = None
    options: Settings = {}
    librdkafka_options: Settings = {}

    @property
    def protocol(self) -> str:
        """The listener's security protocol, by what is declared."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")

    def java(self) -> dict[str, str]:
        """Settings of Java's clients. OSError when a file of `sasl` or `tls` cannot be read."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.sasl or self.tls:
            found["security.protocol"] = self.protocol
        if self.sasl:
            found |= {"sasl.mechanism": self.sasl.mechanism, "sasl.jaas.config": self.sasl.jaas()}
        if self.tls:
            found |= _java_tls(self.tls)
        return found | self.options

    def spark_options(self) -> dict[str, str]:
        """The same as options of Spark's Kafka source and sink."""
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
    """A schema registry: its URLs, the first that answers is asked."""

    urls: Annotated[list[Annotated[str, Field(pattern=r"^https?://[^/?#]+[^?#]*$")]], Field(min_length=1)]
    username: str | None = None
    password_file: str | None = None
    ca: str | None = None

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
    topic_pattern: Pattern | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TopicsConfig:
        if (self.topics is None) == (self.topic_pattern is None):
            raise ValueError("give topics or topicPattern, one of the two")
        return self

    def fits(self, topic: str) -> bool:
        """Whether it is one of them."""
        if self.topics is not None:
            return topic in self.topics
        assert self.topic_pattern is not None
        return re.fullmatch(self.topic_pattern, topic) is not None

    def subscription(self) -> dict[str, str]:
        """As options of Spark's Kafka source."""
        if self.topics is not None:
            return {"subscribe": ",".join(self.topics)}
        assert self.topic_pattern is not None
        # Spark would take a topic that has the pattern anywhere in its name.
        return {"subscribePattern": f"^(?:{self.topic_pattern})$"}


class Trigger(Model):
    """When batches are made: every `interval`, or of all there is now, and then the job is done."""

    interval: Interval = "10 seconds"
    available_now: bool = False

    def write_options(self) -> dict[str, Any]:
        """Arguments of `DataStreamWriter.trigger`."""
        return {"availableNow": True} if self.available_now else {"processingTime": self.interval}


class SparkConfig(Model):
    """Settings of the Spark session, where the job's own do not say otherwise; and the packages of
    `ottla_pipeline.spark.EXTRAS` that it needs."""

    settings: Settings = {}
    packages: list[Literal["iceberg", "postgresql", "sqlite"]] = []


class JobConfig(Model):
    """What every job has. `checkpoint` is a folder that Spark's Hadoop file systems know; it and the name
    belong to one job alone. How far the job is, is published as the offsets of consumer group `group`."""

    JOB: ClassVar[str] = "job"

    name: Annotated[str, Field(pattern=NAME, max_length=100)]
    kafka: KafkaConfig
    checkpoint: Annotated[str, Field(min_length=1)]
    group: Annotated[str, Field(min_length=1, max_length=249)] | None = None
    trigger: Trigger = Trigger()
    max_offsets_per_trigger: Annotated[int, Field(ge=1)] | None = None
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    spark: SparkConfig = SparkConfig()

    @property
    def consumer_group(self) -> str:
        """The group under which progress is published."""
        return self.group or f"ottla-{self.JOB}-{self.name}"

    def source_options(self, topics: TopicsConfig) -> dict[str, str]:
        """Options of Spark's Kafka source. Records that have gone before they were read stop the job."""
        limit = self.max_offsets_per_trigger
        return {
            **self.kafka.spark_options(),
            **topics.subscription(),
            "startingOffsets": self.starting_offsets,
            "failOnDataLoss": "true",
            **({"maxOffsetsPerTrigger": str(limit)} if limit is not None else {}),
        }
