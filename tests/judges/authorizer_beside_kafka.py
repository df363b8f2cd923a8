"""An authorizer without ACLs; `java/CustomAuthorizer.java` is the same for Apache Kafka.

Imported by the broker that `test_custom_authorizer_like_kafka.py` starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.security.acls import Operation, ResourceType
from ottla.security.principals import Principal


class CustomAuthorizer:
    def configure(self, configs: Mapping[str, str]) -> None:
        self.home = configs["authorizer.home"]

    def authorize(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if name.startswith("broken"):
            raise RuntimeError("a secret")
        return host == self.home or name.startswith("open")

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return resource_type is ResourceType.TOPIC and operation is Operation.READ

    def close(self) -> None:
        print("the authorizer is closed", flush=True)
