"""The Secrets of a secured cluster, certificates of cert-manager and the bundle of what clients must trust.

Part of the platform. `planning.cluster_secrets` decides what they contain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ottla_operator.kubernetes import certificates, issuing, manifests_zookeeper, naming
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.cluster_access import ClusterAccess
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.cluster_secrets import (
    Data,
    authorities,
    clients_trust,
    generated_authorities,
    given_config_maps,
    given_secrets,
    issued_secret,
    plan_secrets,
    renewable_secrets,
    secret_names,
)
from ottla_operator.planning.given_certificates import Flaw, finding_of
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import RENEW_ANNOTATION, REPLACE_KEY_ANNOTATION

log = logging.getLogger(__name__)

_GIVEN = "generateCertificateAuthority is false: replace the key and the certificate themselves"


class ClusterCertificates:
    def __init__(
        self,
        objects: ChildObjects,
        access: ClusterAccess,
        cluster: str,
        clock_ms: Callable[[], int],
        random_bytes: RandomBytes,
    ) -> None:
        self._objects = objects
        self._access = access
        self._name = cluster
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes

    async def find_given(self, cluster: BrokerCluster) -> None:
        """Find the Secrets and ConfigMaps of others. One that cannot be read counts as missing."""
        if not cluster.spec.is_secured:
            return
        wanted = [("Secret", name) for name in sorted(given_secrets(cluster))]
        wanted += [("ConfigMap", name) for name in sorted(given_config_maps(cluster))]
        for kind, name in wanted:
            if self._objects.listed.find(kind, name) is None:
                try:
                    await self._objects.find_unlabelled(kind, name)
                except StepFailed as failure:
                    log.warning("%s", failure.message)

    async def ensure(self, cluster: BrokerCluster, ensured: Ensured) -> bool:
        """Returns whether all Secrets exist. The first failure ends it: certificates are signed with the keys
        before them."""
        if not cluster.spec.is_secured:
            return True
        for name in secret_names(self._name):
            if self._objects.listed.find("Secret", name) is None and not await ensured.attempt(
                self._objects.find_unlabelled("Secret", name)
            ):
                return False
        listed = self._objects.listed
        for name in certificates.annotated(listed, generated_authorities(cluster), REPLACE_KEY_ANNOTATION):
            if not await ensured.attempt(self._delete_key(name)):
                return False
        names = {
            naming.broker_pod(self._name, broker): self._access.names_of(cluster, broker)
            for broker in self._access.brokers_wanted(cluster)
        }
        found = certificates.data_of(self._objects.listed)
        servers = manifests_zookeeper.server_names(cluster)
        hosts = self._access.hosts(cluster)
        await self._ensure_issued(cluster, hosts, ensured)
        renew = certificates.annotated(self._objects.listed, renewable_secrets(cluster), RENEW_ANNOTATION)
        planned = plan_secrets(
            cluster,
            names,
            found,
            self._clock_ms(),
            self._random_bytes,
            zookeeper=servers,
            hosts=hosts,
            in_use=certificates.files_in_use(self._objects.listed, cluster),
            config_maps=certificates.config_maps_of(self._objects.listed),
            renew=renew,
            pending=issuing.pending(cluster, self._objects.listed, self._objects.unavailable),
        )
        given = [name for name in authorities(self._name) if name not in generated_authorities(cluster)]
        ignored = [
            Flaw("NotGenerated", f"Secret {name}: {REPLACE_KEY_ANNOTATION} is ignored, since {_GIVEN}")
            for name in certificates.annotated(self._objects.listed, given, REPLACE_KEY_ANNOTATION)
        ]
        ensured.findings += finding_of([*planned.flaws, *ignored])
        for name, data in planned.data.items():
            if not await ensured.attempt(
                self._ensure_secret(cluster, name, data, planned.changes.get(name, ()))
            ):
                return False
            if name in renew and name in planned.changes:
                await ensured.attempt(self._renewed(name))
        await self._ensure_bundle(cluster, {**found, **planned.data}, ensured)
        return True

    async def _ensure_issued(
        self, cluster: BrokerCluster, hosts: Mapping[str, Sequence[str]], ensured: Ensured
    ) -> None:
        """Certificates for cert-manager, once the addresses of a listener are known."""
        if issuing.KIND in self._objects.unavailable:
            return
        unknown = self._access.listeners_without_address(cluster)
        known = {name: each for name, each in hosts.items() if name not in unknown}
        wanted = issuing.build_certificates(cluster, known)
        for manifest in wanted:
            await ensured.attempt(self._objects.ensure(manifest))
        kept = {issued_secret(self._name, name) for name in unknown}
        for name in issuing.obsolete(self._objects.listed, wanted):
            if name not in kept:
                await ensured.attempt(self._delete(issuing.KIND, name))

    async def _delete(self, kind: str, name: str) -> str:
        await self._objects.delete(kind, name)
        return f"delete {kind} {name}"

    async def _ensure_bundle(
        self, cluster: BrokerCluster, data: Mapping[str, Data], ensured: Ensured
    ) -> None:
        """The ConfigMap with what clients must trust."""
        trusted = {
            listener.name: clients_trust(cluster, listener, data)
            for listener in cluster.spec.listeners
            if listener.tls
        }
        if any(trusted.values()):
            await ensured.attempt(self._objects.ensure(certificates.build_bundle(cluster, trusted)))
        elif self._objects.listed.find("ConfigMap", naming.bundle_name(self._name)) is not None:
            await ensured.attempt(self._delete("ConfigMap", naming.bundle_name(self._name)))

    async def _renewed(self, name: str) -> str:
        """Remove the request, which would be carried out again otherwise."""
        live = self._objects.listed.find("Secret", name)
        assert live is not None, f"Secret {name} was just applied"
        patch = {"metadata": {"annotations": {RENEW_ANNOTATION: None}}}
        await self._objects.patch("Secret", live, patch, "AnnotationNotRemoved")
        return ""

    async def _delete_key(self, name: str) -> str:
        # A missing key is generated, also after an interruption at this point.
        await self._objects.delete("Secret", name)
        return f"delete Secret {name}: {REPLACE_KEY_ANNOTATION} requests a new key"

    async def _ensure_secret(
        self, cluster: BrokerCluster, name: str, data: Mapping[str, bytes], why: Sequence[str]
    ) -> str:
        what = await self._objects.ensure(certificates.build_secret(cluster, name, data))
        return f"{what} ({'; '.join(why)})" if what and why else what
