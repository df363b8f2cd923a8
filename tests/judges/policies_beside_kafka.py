"""Policies that print their input; `java/Policies.java` does the same for Apache Kafka.

Imported by the broker that `test_policies_like_kafka.py` starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.metadata.policies import AlterConfigMetadata, CreateTopicMetadata, PolicyViolation


def in_java(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_java(key)}={in_java(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_java, value)) + "]"
    return str(value)


class Create:
    def configure(self, configs: Mapping[str, str]) -> None:
        self.refused = configs["custom.refused"]

    def validate(self, request: CreateTopicMetadata) -> None:
        if request.topic.startswith("broken"):
            raise RuntimeError("a secret")
        if request.topic.startswith(self.refused):
            raise PolicyViolation(" ".join(map(in_java, request)))


class Alter:
    def validate(self, request: AlterConfigMetadata) -> None:
        if "flush.ms" in request.configs:
            raise RuntimeError("a secret")
        if request.configs.keys() & {"retention.ms", "log.retention.ms"}:
            name = f"'{request.resource_name}'"
            raise PolicyViolation(f"{request.resource_type} {name} {in_java(request.configs)}")

    def close(self) -> None:
        print("the policy is closed", flush=True)
