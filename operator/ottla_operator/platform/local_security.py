"""Listeners, certificates and client properties of a secured cluster of local processes.

Used by `platform.local`. Settings and certificates are the same as in pods (`planning.listener_security`,
`planning.cluster_secrets`), with files instead of mounted Secrets. All brokers have one address, so each
listener of each broker has its own port: listener L of broker B uses the first port + 100 * L + B. The
inter-broker listener, which the operator uses, too, has any free port.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ottla_operator.planning.cluster_secrets import (
    CA_CERTIFICATE,
    OPERATOR,
    brokers_secret,
    certificate_secret,
    clients_ca,
    cluster_ca,
    operator_secret,
    plan_secrets,
    secret_names,
)
from ottla_operator.planning.listener_security import (
    SecurityFiles,
    kafka_name,
    protocol_map,
    security_settings,
)
from ottla_operator.platform.secret_files import SecretFiles
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import Listener, ListenerStatus

PORTS_APART: Final = 100
_BETWEEN: Final = "REPLICATION"
_DEFAULT: Final = (Listener(name="plain", port=9092),)


class LocalSecurity:
    def __init__(self, secrets: SecretFiles, host: str, first_port: int) -> None:
        self._secrets = secrets
        self._host = host
        self._first_port = first_port

    # ---- addresses

    def client_ports(self, cluster: BrokerCluster, broker: int) -> list[int]:
        """The broker's port for each listener of the spec."""
        first = self._first_port + broker
        return [first + PORTS_APART * number for number, _ in enumerate(_listeners(cluster))]

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        brokers = range(cluster.spec.replicas)
        found = []
        for number, listener in enumerate(_listeners(cluster)):
            ports = [self.client_ports(cluster, broker)[number] for broker in brokers]
            trusted = self._trusted(cluster) if listener.tls else []
            servers = ",".join(f"{self._host}:{port}" for port in ports)
            found.append(ListenerStatus(name=listener.name, bootstrap_servers=servers, certificates=trusted))
        return found

    def _trusted(self, cluster: BrokerCluster) -> list[str]:
        try:
            return [self._secrets.path(self.authority(cluster), CA_CERTIFICATE).read_text()]
        except OSError:
            return []

    @staticmethod
    def authority(cluster: BrokerCluster) -> str:
        """The Secret with the authority's certificate that clients trust."""
        return certificate_secret(cluster_ca(cluster.metadata.name))

    # ---- brokers

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        """The parts of the revision that affect local brokers: ports and types of listeners are for
        Kubernetes only."""
        spec = cluster.spec
        listeners = [listener.model_dump(exclude={"port", "type"}) for listener in _listeners(cluster)]
        authorization = None if spec.authorization is None else spec.authorization.model_dump()
        return {"spec.listeners": json.dumps(listeners), "spec.authorization": json.dumps(authorization)}

    def settings(self, cluster: BrokerCluster, broker: int) -> dict[str, str]:
        """The security and listener settings of one broker, without the inter-broker listener
        (`listening_at`)."""
        name, spec, listeners = cluster.metadata.name, cluster.spec, _listeners(cluster)
        files = SecurityFiles(
            keystore=str(self._secrets.path(brokers_secret(name), f"{_file(broker)}.pem")),
            cluster_ca=str(self._secrets.path(self.authority(cluster), CA_CERTIFICATE)),
            clients_ca=str(self._secrets.path(certificate_secret(clients_ca(name)), CA_CERTIFICATE)),
        )
        ports = self.client_ports(cluster, broker)
        own = [
            f"{kafka_name(listener)}://{self._host}:{port}"
            for listener, port in zip(listeners, ports, strict=True)
        ]
        return {
            "listeners": ",".join(own),
            "listener.security.protocol.map": protocol_map(spec, listeners, _BETWEEN),
            "inter.broker.listener.name": _BETWEEN,
            **security_settings(name, spec, listeners, _BETWEEN, files),
        }

    def listening_at(self, settings: Mapping[str, str], port: int) -> dict[str, str]:
        return {**settings, "listeners": f"{_BETWEEN}://{self._host}:{port},{settings['listeners']}"}

    async def ensure_children(self, cluster: BrokerCluster, brokers: Iterable[int], now_ms: int) -> list[str]:
        """Write the Secrets of authorities and certificates that are due. Returns descriptions; raises
        StepFailed."""
        read = await self._secrets.read(secret_names(cluster.metadata.name))
        found = {name: secret.data for name, secret in read.items()}
        names = {_file(broker): (self._host, "localhost") for broker in brokers}
        planned = plan_secrets(cluster, names, found, now_ms)
        for name, data in planned.data.items():
            if found.get(name) != data:
                await self._secrets.put(cluster, name, data)
        return [f"write Secret {name}: {', '.join(why)}" for name, why in planned.changes.items()]

    # ---- the operator

    def client_properties(self, cluster: BrokerCluster) -> dict[str, str]:
        """The client properties of the operator's connections; empty before it has a certificate."""
        keystore = self._secrets.path(operator_secret(cluster.metadata.name), f"{OPERATOR}.pem")
        if not keystore.exists():
            return {}
        return {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._secrets.path(self.authority(cluster), CA_CERTIFICATE)),
        }


def _listeners(cluster: BrokerCluster) -> Sequence[Listener]:
    return cluster.spec.listeners or _DEFAULT


def _file(broker: int) -> str:
    return f"broker-{broker}"
