"""The ZooKeeper of a cluster: `spec.zookeeper` of BrokerCluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field, model_validator

from ottla_operator.resources.authentication import TrustedCertificates
from ottla_operator.resources.common import FreeForm, Model, Problem, Rule, Storage, cel_regex, rules
from ottla_operator.resources.pods import PodTemplate, pod_problems, pod_rules
from ottla_operator.resources.settings import is_connect_string

OF_SECURED: Final = "requires a cluster with tls or authentication of a listener, or authorization"

_SERVER: Final = r"\s*([[][0-9A-Fa-f:.%a-z]+[]]|[^\s:/,\[\]]+)(:[1-9][0-9]{0,4})?\s*"
_CONNECT_STRING: Final = rf"^{_SERVER}(,{_SERVER})*(/([^/\s](.*[^/\s])?)?)?$"


class ZooKeeperTemplate(Model):
    model_config = rules(*pod_rules("zookeeper"))

    pod: PodTemplate = Field(
        default_factory=PodTemplate,
        description="A pod template that is merged into that of the servers; their container is zookeeper.",
    )


_HEAP_MIN: Final = 32 << 10
"""KiB. A server with less ends at its start."""
_HEAP_UNITS: Final = {"k": 1, "m": 1 << 10, "g": 1 << 20}
_SMALL_HEAP: Final = (
    r"^([12]?[0-9]{1,4}|3[01][0-9]{3}|32[0-6][0-9]{2}|327[0-5][0-9]|3276[0-7])[kK]$|^([12]?[0-9]|3[01])[mM]$"
)


class ManagedZooKeeper(Model):
    model_config = rules(
        Rule(
            "heap must be at least 32m",
            f"!has(self.heap) || !self.heap.matches({cel_regex(_SMALL_HEAP)})",
        )
    )

    replicas: int = Field(
        default=3, ge=1, le=7, description="The number of servers, which cannot be changed."
    )
    storage: Storage = Field(default_factory=Storage, description="The volume of each server.")
    image: str | None = Field(
        default=None, min_length=1, description="The image of the servers. Default: that of the operator."
    )
    resources: FreeForm = Field(
        default_factory=dict,
        description="Requests and limits of each server, as in Kubernetes. Memory must have room for the "
        "heap and about 128Mi besides. Default: requests of 50m CPU and 256Mi memory, no limits.",
    )
    heap: str | None = Field(
        default=None,
        pattern=r"^[1-9][0-9]*[kKmMgG]$",
        description="The maximum heap of each server's JVM (-Xmx), with the unit k, m or g; at least 32m. "
        "Default: 256m.",
    )
    template: ZooKeeperTemplate = Field(
        default_factory=ZooKeeperTemplate, description="Additions to the pods of the servers."
    )


class ZooKeeper(Model):
    """The cluster's ZooKeeper: an external one, or one that the operator runs (the default)."""

    model_config = rules(
        Rule("connect and managed exclude each other", "!has(self.connect) || !has(self.managed)"),
        Rule(
            "connect must be HOST:PORT[,HOST:PORT…][/chroot]",
            f"!has(self.connect) || (self.connect.matches({cel_regex(_CONNECT_STRING)}) && "
            "!self.connect.contains('//'))",
        ),
        Rule(
            "tlsTrustedCertificates requires connect",
            "!has(self.tlsTrustedCertificates) || has(self.connect)",
        ),
    )

    connect: str | None = Field(
        default=None, min_length=1, max_length=4096, description="host:port[,host:port…][/chroot]"
    )
    managed: ManagedZooKeeper | None = Field(
        default=None, description="A ZooKeeper that the operator runs. Default: three servers."
    )
    tls_trusted_certificates: list[TrustedCertificates] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="The authorities of the servers' certificates: brokers connect by TLS. Needs connect, "
        "and a cluster with tls, authentication or authorization. Default: connections without TLS, unless "
        "config has zookeeper.ssl settings.",
    )

    @model_validator(mode="after")
    def _one_of(self) -> ZooKeeper:
        if self.connect is not None and self.managed is not None:
            raise ValueError("connect and managed exclude each other")
        return self

    @property
    def servers(self) -> int | None:
        """The number of servers that the operator runs; None for an external ZooKeeper."""
        return None if self.connect is not None else (self.managed or ManagedZooKeeper()).replicas

    def problems(self, path: str) -> Iterator[Problem]:
        """What is wrong with it, at this path."""
        if self.connect is not None and not is_connect_string(self.connect):
            yield Problem(
                f"{path}.connect",
                f"{self.connect!r} is not allowed: must be HOST:PORT[,HOST:PORT…][/chroot]",
            )
        if self.managed is not None and self.managed.heap is not None:
            heap = self.managed.heap
            if int(heap[:-1]) * _HEAP_UNITS[heap[-1].lower()] < _HEAP_MIN:
                yield Problem(f"{path}.managed.heap", f"{heap!r} is not allowed: must be at least 32m")
        if self.managed is not None:
            yield from pod_problems(self.managed.template.pod, f"{path}.managed.template.pod", "zookeeper")
        for n, source in enumerate(self.tls_trusted_certificates or ()):
            yield from source.problems(f"{path}.tlsTrustedCertificates[{n}]")
        if self.tls_trusted_certificates is not None and self.connect is None:
            yield Problem(f"{path}.tlsTrustedCertificates", "requires connect")
