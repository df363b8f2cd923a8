"""The Secrets of a secured cluster as manifests, and the volumes that mount them in pods.

Pure. `planning.cluster_secrets` defines their content. Pods mount them as files, which the kubelet updates in
place and brokers reload without a restart.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.listeners import (
    CERTIFICATES_DIR,
    CLUSTER_DOMAIN,
    Advertised,
    bootstrap_host,
    broker_host,
)
from ottla_operator.kubernetes.manifests_common import Manifest, build, digest
from ottla_operator.kubernetes.observing import Listed, annotations_of, configs_of
from ottla_operator.planning import cluster_secrets
from ottla_operator.planning.certificates import Pair, certificates_in, end_ms
from ottla_operator.planning.cluster_secrets import Data, certificate_secret
from ottla_operator.planning.given_certificates import CA_CERTIFICATE
from ottla_operator.resources import BrokerCluster

MOUNT: Final = {"name": "certificates", "mountPath": CERTIFICATES_DIR, "readOnly": True}
ZOOKEEPER_FILE: Final = f"{cluster_secrets.ZOOKEEPER}.pem"


def volume(cluster: str) -> Manifest:
    """The volume of a broker: keys and certificates of brokers, and both authorities."""
    return _volume(cluster_secrets.brokers_secret(cluster))


def zookeeper_volume(cluster: str) -> Manifest:
    """The volume of a ZooKeeper server: key, certificate and the cluster's authority, not that of clients."""
    return _volume(cluster_secrets.zookeeper_secret(cluster))


def _volume(secret: str) -> Manifest:
    """Of the type that it always had: an applied change of the type would leave both."""
    return {"name": "certificates", "projected": {"sources": [{"secret": {"name": secret}}]}}


def zookeeper_digest(listed: Listed, cluster: str) -> str:
    """A digest that changes when ZooKeeper servers need a restart: they read these files at start only."""
    data = data_of(listed)
    own = data.get(cluster_secrets.zookeeper_secret(cluster), {}).get(ZOOKEEPER_FILE, b"")
    trusted = cluster_secrets.cluster_trust(cluster, data)
    return digest([each.decode(errors="replace") for each in (own, trusted)])


def broker_names(
    cluster: BrokerCluster, broker: int, advertised: Advertised, bootstrap: Sequence[str] = ()
) -> list[str]:
    """The host names and addresses of a broker and of the bootstrap Services, for its certificate.
    `bootstrap`: those of external listeners."""
    services = [bootstrap_host(cluster), broker_host(cluster, broker)]
    names = [name for service in services for name in (service.removesuffix(".svc"), service)]
    names += [f"{service}.{CLUSTER_DOMAIN}" for service in services]
    names += [*(host for host, _ in advertised.values()), *bootstrap]
    return list(dict.fromkeys([naming.bootstrap_name(cluster.metadata.name), *names]))


def data_of(listed: Listed) -> dict[str, Data]:
    """The content of the listed Secrets, without entries that are not base64."""
    return {name: _decoded(item.get("data") or {}) for name, item in listed.objects.get("Secret", {}).items()}


def _decoded(data: Mapping[str, str]) -> Data:
    found = {}
    for entry, text in data.items():
        try:
            found[entry] = base64.b64decode(text, validate=True)
        except ValueError:
            continue
    return found


def annotated(listed: Listed, names: Iterable[str], annotation: str) -> list[str]:
    """The Secrets among `names` with this annotation."""
    found = {name: listed.find("Secret", name) for name in names}
    return [
        name
        for name, secret in found.items()
        if secret is not None and annotations_of(secret).get(annotation, "").lower() == "true"
    ]


def build_secret(cluster: BrokerCluster, name: str, data: Data) -> Manifest:
    """The Secret with this content, owned by the cluster."""
    encoded = {entry: base64.b64encode(content).decode() for entry, content in data.items()}
    return build(cluster, "v1", "Secret", name, naming.SECURITY, {"type": "Opaque", "data": encoded})


def build_bundle(cluster: BrokerCluster, trusted: Mapping[str, bytes]) -> Manifest:
    """The ConfigMap with what clients must trust: ca.crt for all listeners, and an entry for each. `trusted`:
    by listener."""
    every = dict.fromkeys(pem for bundle in trusted.values() for pem in certificates_in(bundle))
    data = {
        CA_CERTIFICATE: b"".join(every),
        **{f"{name}.listener.crt": bundle for name, bundle in trusted.items()},
    }
    texts = {entry: content.decode() for entry, content in data.items() if content}
    labels = {naming.BUNDLE_LABEL: cluster.metadata.name}
    name = naming.bundle_name(cluster.metadata.name)
    return build(cluster, "v1", "ConfigMap", name, naming.SECURITY, {"data": texts}, labels=labels)


def trusted(listed: Listed, cluster: str) -> str:
    """The authorities' certificates that clients of the brokers trust, in PEM; "" while there are none."""
    return cluster_secrets.cluster_trust(cluster, data_of(listed)).decode()


def config_maps_of(listed: Listed) -> dict[str, Data]:
    """The content of the listed ConfigMaps."""
    return {
        name: {
            **{entry: text.encode() for entry, text in (item.get("data") or {}).items()},
            **_decoded(item.get("binaryData") or {}),
        }
        for name, item in listed.objects.get("ConfigMap", {}).items()
    }


def files_in_use(listed: Listed, cluster: BrokerCluster) -> set[str]:
    """The files of listeners that a broker's ConfigMap names."""
    configs = configs_of(listed, cluster.metadata.name).values()
    return cluster_secrets.files_in_use(
        str((config.get("data") or {}).get(naming.PROPERTIES, "")) for config in configs
    )


def client_properties(listed: Listed, cluster: str) -> dict[str, str]:
    """The client properties of the operator's connections; empty without TLS."""
    own = data_of(listed).get(cluster_secrets.operator_secret(cluster))
    if own is None:
        return {}
    pair = Pair.of_pem(own.get(f"{cluster_secrets.OPERATOR}.pem", b""))
    return {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": pair.key.decode(),
        "ssl.keystore.certificate.chain": pair.certificate.decode(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": trusted(listed, cluster),
    }


def authority_ends(listed: Listed, cluster: str) -> dict[str, int]:
    """When each authority's certificate expires, milliseconds since the epoch, by Strimzi's name of its
    kind."""
    kinds = {
        "cluster-ca": cluster_secrets.cluster_ca(cluster),
        "client-ca": cluster_secrets.clients_ca(cluster),
    }
    data = data_of(listed)
    ends = {
        kind: end_ms(data.get(certificate_secret(authority), {}).get(CA_CERTIFICATE, b""))
        for kind, authority in kinds.items()
    }
    return {kind: end for kind, end in ends.items() if end is not None}
