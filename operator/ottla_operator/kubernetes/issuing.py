"""Listeners' certificates by cert-manager: the Certificates of the operator, and what they wait for.

Pure. cert-manager writes the certificate into a Secret, which `planning.cluster_secrets` uses as one of a
user. A missing CustomResourceDefinition, Issuer or Secret is described and stops nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.manifests_common import Manifest, build
from ottla_operator.kubernetes.observing import Listed, Object, name_of
from ottla_operator.planning.cluster_secrets import issued_authorities, issued_authority_secret, issued_secret
from ottla_operator.planning.given_certificates import Flaw
from ottla_operator.planning.listener_security import listeners_of
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.listeners import IssuerRef, Listener
from ottla_operator.resources.security import CertificateAuthority

API: Final = "cert-manager.io/v1"
KIND: Final = "Certificate"


def issued_listeners(cluster: BrokerCluster) -> list[Listener]:
    """The listeners whose certificates cert-manager issues."""
    return [one for one in listeners_of(cluster) if one.tls and one.configuration.issuer_ref is not None]


def is_used(cluster: BrokerCluster) -> bool:
    """Whether cert-manager issues anything for the cluster."""
    return bool(issued_listeners(cluster) or issued_authorities(cluster))


def build_certificates(cluster: BrokerCluster, hosts: Mapping[str, Sequence[str]]) -> list[Manifest]:
    """A Certificate for each authority, and for each listener of which all hosts are known. `hosts`: by
    listener."""
    of_authorities = [
        _of_authority(cluster, name, spec) for name, spec in issued_authorities(cluster).items()
    ]
    of_listeners = [
        _of_listener(cluster, listener, hosts[listener.name])
        for listener in issued_listeners(cluster)
        if hosts.get(listener.name)
    ]
    return [*of_authorities, *of_listeners]


def _of_authority(cluster: BrokerCluster, name: str, spec: CertificateAuthority) -> Manifest:
    usages = ["digital signature", "cert sign", "crl sign"]
    more = {"isCA": True, "commonName": name, "usages": usages}
    return _certificate(cluster, issued_authority_secret(name), spec.issuer_ref, spec, more)


def _of_listener(cluster: BrokerCluster, listener: Listener, hosts: Iterable[str]) -> Manifest:
    addresses = [host for host in hosts if _is_address(host)]
    names = [host for host in hosts if not _is_address(host)]
    more = {
        "usages": ["digital signature", "server auth"],
        **({"dnsNames": names} if names else {}),
        **({"ipAddresses": addresses} if addresses else {}),
    }
    name, issuer = issued_secret(cluster.metadata.name, listener.name), listener.configuration.issuer_ref
    return _certificate(cluster, name, issuer, cluster.spec.cluster_ca, more)


def _certificate(
    cluster: BrokerCluster,
    name: str,
    issuer: IssuerRef | None,
    lifetime: CertificateAuthority,
    more: Mapping[str, object],
) -> Manifest:
    """The Certificate, and its Secret, of this name."""
    assert issuer is not None, f"{name} has an issuer"
    spec = {
        "secretName": name,
        # A change of the Secret wakes the operator by this label.
        "secretTemplate": {"labels": {naming.CLUSTER_LABEL: cluster.metadata.name}},
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": issuer.group},
        "duration": f"{lifetime.validity_days * 24}h0m0s",
        "renewBefore": f"{lifetime.renewal_days * 24}h0m0s",
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        **more,
    }
    return build(cluster, API, KIND, name, naming.SECURITY, {"spec": spec})


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def obsolete(listed: Listed, wanted: Iterable[Manifest]) -> list[str]:
    """The operator's Certificates of listeners that have another certificate now."""
    names = {name_of(manifest) for manifest in wanted}
    return [
        name
        for name, item in sorted(listed.objects.get(KIND, {}).items())
        if name not in names and _is_own(item)
    ]


def _is_own(item: Object) -> bool:
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == BrokerCluster.definition.kind for owner in owners)


def pending(cluster: BrokerCluster, listed: Listed, unavailable: Mapping[str, str]) -> dict[str, Flaw]:
    """What keeps cert-manager from issuing certificates, by their Secret. `unavailable`: why kinds cannot be
    listed."""
    found = {}
    used_by = {issued_authority_secret(name): name for name in issued_authorities(cluster)}
    used_by |= {
        issued_secret(cluster.metadata.name, listener.name): f"listener {listener.name}"
        for listener in issued_listeners(cluster)
    }
    for name, what in used_by.items():
        if KIND in unavailable:
            message = f"{API} {KIND}: {unavailable[KIND].strip()}; is cert-manager installed?"
            found[name] = Flaw("CertManagerNotAvailable", f"{what}: {message}")
            continue
        certificate = listed.find(KIND, name)
        message = "it is not processed yet" if certificate is None else _problem(certificate)
        if message:
            found[name] = Flaw("CertificateNotReady", f"{what}: {KIND} {name}: {message}")
    return found


def _problem(certificate: Object) -> str:
    """Why the Certificate is not ready, in cert-manager's words; "" when it is."""
    conditions = (certificate.get("status") or {}).get("conditions") or ()
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    if ready is None:
        return "cert-manager has not processed it yet"
    return "" if ready.get("status") == "True" else str(ready.get("message") or ready.get("reason"))
