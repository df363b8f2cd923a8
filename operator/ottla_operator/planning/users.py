"""Plans User resources: credentials and ACLs, applied through the Admin API and corrected when they differ.

Called by `reconcile` with all Users at once: of two for one user, the older one owns it. With
`spec.authorization`, a user has exactly the ACLs of the resource. Without it, the operator removes the ACLs
that it has set (`status.authorization`) and then leaves ACLs to other tools. The password or key is in a
Secret; an existing one is kept, and only a missing or expiring one is made.

Brokers do not describe passwords, so a SCRAM credential cannot be compared with the Secret. They describe the
number of iterations, which the operator derives from the Secret's version; the status has the version whose
password was set last. A changed Secret has another version and is set again. A credential that another tool
has set has another number of iterations (mostly 4096) and is set again, too; one with the same number is not
detected.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ottla.security.acls import AclBinding
from ottla.security.scram import ITERATIONS_MIN
from ottla_operator.conditions import Finding, no, unknown, yes
from ottla_operator.planning.certificates import (
    Pair,
    Subject,
    authority_reason,
    renewal_reason,
)
from ottla_operator.planning.cluster_secrets import (
    brokers_secret,
    certificate_secret,
    clients_authority,
    clients_ca,
    issued_authority_secret,
)
from ottla_operator.planning.given_certificates import CA_KEY
from ottla_operator.planning.listener_security import SCRAM_MECHANISM, lifetime_of
from ottla_operator.planning.observed import AccessState, Observed, Secret
from ottla_operator.planning.steps import (
    CreateAcls,
    DeleteAcls,
    DeleteScramCredential,
    DeleteSecret,
    PutCertificate,
    PutPassword,
    ResourcePlan,
    SetScramCredential,
    UserStep,
)
from ottla_operator.resources import BrokerCluster, User, UserStatus

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"

# Above Kafka's minimum. More would slow down each login, and a generated password needs no more.
_ITERATIONS_SPREAD = 4096


@dataclass(frozen=True, slots=True)
class _Credentials:
    """The plan for one user's credentials."""

    finding: Finding
    steps: tuple[UserStep, ...] = ()
    version: str = ""
    """The version of the Secret whose password the steps set."""


def plan_users(
    users: Iterable[User], observed: Observed, usable: bool, cluster: BrokerCluster
) -> dict[str, ResourcePlan[UserStatus]]:
    """Plans by resource key. `usable`: the cluster has a controller that responds."""
    owners: dict[str, User] = {}
    plans: dict[str, ResourcePlan[UserStatus]] = {}
    access = observed.kafka.access if usable else None
    for user in sorted(users, key=lambda u: u.metadata.age_key):
        owner = owners.setdefault(user.username, user)
        if user.metadata.deleting:
            plans[user.key] = _plan_deletion(user, owner, access)
        elif owner is not user:
            message = f"{owner.key}, which is older, owns user {user.username}"
            plans[user.key] = _not_observed(user, "ResourceConflict", message)
        elif access is None:
            plans[user.key] = _not_observed(
                user, "ClusterNotReady", "the cluster is not reachable", keep_status=True
            )
        else:
            plans[user.key] = _plan(user, access, observed, cluster)
    return plans


def secrets_of(users: Iterable[User], cluster: BrokerCluster) -> frozenset[str]:
    """The names of the Secrets that the plans of these users need."""
    names: set[str] = set()
    for user in users:
        names.add(user.secret_name)
        if user.password_source is not None:
            names.add(user.password_source.name)
        if user.authentication_type == "tls":
            names |= {
                clients_ca(cluster.metadata.name),
                certificate_secret(clients_ca(cluster.metadata.name)),
                brokers_secret(cluster.metadata.name),
                issued_authority_secret(clients_ca(cluster.metadata.name)),
            }
    return frozenset(names)


def jaas_config(user: str, password: str) -> str:
    """`sasl.jaas.config` of a client with these credentials."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'{SCRAM_MODULE} required username="{user}" password="{quoted}";'


def iterations_of(version: str) -> int:
    """The number of iterations of a credential that is set from this version of a Secret."""
    return ITERATIONS_MIN + 1 + zlib.crc32(version.encode()) % _ITERATIONS_SPREAD


def _not_observed(
    user: User, reason: str, message: str, *, keep_status: bool = False
) -> ResourcePlan[UserStatus]:
    findings = (
        no("Ready", reason, message),
        unknown("CredentialsReady", reason),
        unknown("AclsSynced", reason),
    )
    return ResourcePlan(user, findings, user.status, keep_status=keep_status)


def _plan(
    user: User, access: AccessState, observed: Observed, cluster: BrokerCluster
) -> ResourcePlan[UserStatus]:
    credentials = _credentials(user, access, observed, cluster)
    acls, acl_steps = _acls(user, access, cluster)
    steps = (*_obsolete_steps(user, access, observed.secrets), *credentials.steps, *acl_steps)
    status = UserStatus(
        username=user.username,
        secret=user.secret_name if user.secret_name in observed.secrets and user.spec.authentication else "",
        secret_version=user.status.secret_version if user.authentication_type == "scram-sha-512" else "",
        acls=len((access.acls or {}).get(user.principal, ())),
        authorization=_acls_record(user, acl_steps),
    )
    refused = next(
        (f for f in (credentials.finding, acls) if f.status == "False" and f.reason != "Applying"), None
    )
    if refused is not None:
        ready = no("Ready", refused.reason, refused.message)
    elif steps:
        ready = no("Ready", "Applying", str(steps[0]))
    else:
        ready = yes("Ready", "Applied", "; ".join((credentials.finding.message, acls.message)))
    status_when_done = (
        status.model_copy(update={"secret_version": credentials.version}) if credentials.version else None
    )
    return ResourcePlan(
        user, (ready, credentials.finding, acls), status, steps, status_when_done=status_when_done
    )


# ---- credentials


def _credentials(user: User, access: AccessState, observed: Observed, cluster: BrokerCluster) -> _Credentials:
    kind = user.authentication_type
    if kind is None:
        return _Credentials(
            yes(
                "CredentialsReady",
                "NotAsked",
                "spec.authentication is not set: the operator manages no credentials for the user",
            )
        )
    name = user.secret_name
    secret = observed.secrets.get(name)
    if secret is not None and secret.owner != user.key:
        message = (
            f"Secret {name} exists and {user.key} does not own it: delete it, or give the User another name"
        )
        return _Credentials(_refused("SecretConflict", message))
    if kind == "tls":
        found = _certificate(user, secret, observed, cluster)
    else:
        found = _password(user, secret, access, observed.secrets)
    accepted = {
        listener.authentication.type for listener in cluster.spec.listeners if listener.authentication
    }
    if kind not in accepted and found.finding.reason in ("Ready", "Applying"):
        message = f"no listener of {cluster.key} has authentication of type {kind}"
        return _Credentials(_refused("NotSupported", message), found.steps, found.version)
    return found


def _refused(reason: str, message: str) -> Finding:
    return no("CredentialsReady", reason, message)


def _due(*steps: UserStep, version: str = "") -> _Credentials:
    return _Credentials(no("CredentialsReady", "Applying", str(steps[0])), steps, version)


def _password(
    user: User, secret: Secret | None, access: AccessState, secrets: Mapping[str, Secret]
) -> _Credentials:
    wanted = None
    if user.password_source is not None:
        wanted, problem = _given_password(user, secrets)
        if problem:
            return _Credentials(_refused("InvalidPassword", problem))
    password = text_of(secret, "password")
    if wanted is None and _password_problem(password):
        return _due(PutPassword(user.secret_name, user.login_name))
    kept = wanted if wanted is not None else password
    assert kept is not None
    if (
        secret is None
        or password != kept
        or text_of(secret, "sasl.jaas.config") != jaas_config(user.login_name, kept)
    ):
        return _due(PutPassword(user.secret_name, user.login_name, kept))
    iterations = iterations_of(secret.version)
    current = access.scram.get(user.login_name, {}).get(SCRAM_MECHANISM)
    if current != iterations or user.status.secret_version != secret.version:
        return _due(SetScramCredential(user.login_name, iterations, kept), version=secret.version)
    return _Credentials(yes("CredentialsReady", "Ready", f"the password is in Secret {secret.name}"))


def _given_password(user: User, secrets: Mapping[str, Secret]) -> tuple[str | None, str]:
    """The password of `password.valueFrom`, or why there is none."""
    source = user.password_source
    assert source is not None
    if source.name not in secrets:
        return None, f"Secret {source.name} of spec.authentication.password does not exist"
    password = text_of(secrets[source.name], source.key)
    problem = _password_problem(password)
    return password, f"Secret {source.name}, key {source.key}: {problem}" if problem else ""


def _password_problem(password: str | None) -> str:
    if not password:
        return "the password is missing"
    if not (password.isascii() and password.isprintable()):
        return "the password must consist of printable ASCII characters, without a line feed"
    return ""


def text_of(secret: Secret | None, key: str) -> str | None:
    """One entry of a Secret, or None."""
    value = None if secret is None else secret.data.get(key)
    return None if value is None else value.decode("utf-8", "replace")


def _certificate(
    user: User, secret: Secret | None, observed: Observed, cluster: BrokerCluster
) -> _Credentials:
    contents = {name: found.data for name, found in observed.secrets.items()}
    of_clients = clients_authority(cluster, contents, observed.now_ms)
    authority = None if of_clients is None else of_clients.pair
    if of_clients is None or authority is None:
        message = f"{cluster.key} has no certificate authority for clients"
        if of_clients is not None:
            message = (
                f"Secret {of_clients.name} has no {CA_KEY} that fits: certificates must come from elsewhere"
            )
        return _Credentials(_refused("NotSupported", message))
    data = {} if secret is None else secret.data
    pair = Pair(data["user.key"], data["user.crt"]) if {"user.key", "user.crt"} <= set(data) else None
    lifetime = lifetime_of(cluster.spec.clients_ca)
    # A certificate expires with its authority at the latest: while the authority is due, users' certificates
    # wait.
    due = authority_reason(authority, lifetime, observed.now_ms)
    seen = replace(lifetime, renewal_days=0) if due else lifetime
    subject = Subject(user.login_name)
    reason = renewal_reason(pair, authority.certificate, subject, seen, observed.now_ms)
    if not reason and data.get("ca.crt") != authority.certificate:
        reason = "the authority's certificate has changed"
    if not reason and not (data.get("user.p12") and data.get("user.password")):
        reason = "its key store is missing"
    if reason and (pair is None or not of_clients.renewal_can_wait(pair, subject, seen, observed.now_ms)):
        return _due(PutCertificate(user.secret_name, user.login_name, reason, authority, lifetime))
    return _Credentials(yes("CredentialsReady", "Ready", f"the certificate is in Secret {user.secret_name}"))


def _obsolete_steps(user: User, access: AccessState, secrets: Mapping[str, Secret]) -> Iterator[UserStep]:
    """The steps that remove ACLs, credentials and Secrets of a previous type of authentication."""
    if user.status.username != user.username and _owns_acls(user):
        yield from _acls_of({user.status.username}, access)
    if user.authentication_type != "scram-sha-512":
        yield from _credential_of(user, access)
    secret = secrets.get(user.secret_name)
    if user.spec.authentication is None and secret is not None and secret.owner == user.key:
        yield DeleteSecret(secret.name)


# ---- ACLs


def _acls(user: User, access: AccessState, cluster: BrokerCluster) -> tuple[Finding, tuple[UserStep, ...]]:
    wanted = user.bindings()
    if access.acls is None:
        if user.spec.authorization is None:
            return yes("AclsSynced", "NotAsked", "the brokers have no ACLs"), ()
        message = f"the brokers run without an authorizer: {cluster.key} has no spec.authorization"
        if cluster.spec.authorization is not None and cluster.spec.authorization.type == "custom":
            message = f"the authorizer of {cluster.key} has no ACLs"
        return no("AclsSynced", "NotSupported", message), ()
    current = access.acls.get(user.principal, frozenset())
    if not _owns_acls(user):
        return yes("AclsSynced", "NotAsked", f"{len(current)} ACLs, left to other tools"), ()
    steps = steps_of_acls(wanted - current, current - wanted)
    if steps:
        return no("AclsSynced", "Applying", str(steps[0])), steps
    return yes("AclsSynced", "Synced", f"{len(wanted)} ACLs"), ()


def _owns_acls(user: User) -> bool:
    return user.spec.authorization is not None or user.status.authorization != ""


def _acls_record(user: User, steps: Sequence[UserStep]) -> Literal["", "simple"]:
    """`status.authorization`: "simple" while the operator owns the user's ACLs."""
    before = user.status.authorization
    if user.spec.authorization is not None:
        return user.spec.authorization.type if user.metadata.acted_upon else before
    return before if steps else ""


def steps_of_acls(missing: frozenset[AclBinding], surplus: frozenset[AclBinding]) -> tuple[UserStep, ...]:
    """The changes, additions first: an operation that stays allowed is never denied in between."""
    steps: list[UserStep] = []
    if missing:
        steps.append(CreateAcls(sorted(missing)))
    if surplus:
        steps.append(DeleteAcls(sorted(surplus)))
    return tuple(steps)


# ---- deletion


def _plan_deletion(user: User, owner: User, access: AccessState | None) -> ResourcePlan[UserStatus]:
    """The Secret goes with the resource that owns it."""
    findings = (no("Ready", "Deleting", "the credentials and the ACLs are being removed"),)
    if owner is not user or not user.metadata.managed:
        return ResourcePlan(user, findings, user.status, deletion_complete=True)
    if access is None:
        return ResourcePlan(user, findings, user.status)
    acls = _acls_of({user.username, user.status.username}, access) if _owns_acls(user) else ()
    steps = (*acls, *_credential_of(user, access))
    return ResourcePlan(user, findings, user.status, steps, deletion_complete=not steps)


def _acls_of(usernames: set[str], access: AccessState) -> Iterator[UserStep]:
    acls = [acl for name in usernames for acl in (access.acls or {}).get(f"User:{name}", ())]
    if acls:
        yield DeleteAcls(sorted(acls))


def _credential_of(user: User, access: AccessState) -> Iterator[UserStep]:
    """The deletion of the SCRAM credential, if the operator has set it."""
    if user.status.secret_version and SCRAM_MECHANISM in access.scram.get(user.login_name, {}):
        yield DeleteScramCredential(user.login_name)
