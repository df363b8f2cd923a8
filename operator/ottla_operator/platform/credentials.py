"""Makes what users log in by, and puts it into their Secrets: passwords, keys, certificates.

Called by `acting` for the steps of `planning.users`, on every platform. The entries are named as Strimzi
names them, so that what mounts its Secrets may mount ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from ottla_operator.planning.certificates import Subject, issue, pkcs12
from ottla_operator.planning.steps import DeleteSecret, PutCertificate, PutPassword, SecretStep
from ottla_operator.planning.users import jaas_config
from ottla_operator.platform.port import Secrets
from ottla_operator.resources import AnyResource

_PASSWORD_BYTES: Final = 24  # 32 characters


async def take_secret_step(kept: Secrets, owner: AnyResource, step: SecretStep, now_ms: int) -> None:
    """Raises StepFailed."""
    match step:
        case PutPassword():
            await kept.put(owner, step.secret, _of_password(step))
        case PutCertificate():
            await kept.put(owner, step.secret, _of_certificate(step, now_ms))
        case DeleteSecret():
            await kept.delete(owner, step.secret)


def _of_password(step: PutPassword) -> Mapping[str, bytes]:
    password = step.password or secrets.token_urlsafe(_PASSWORD_BYTES)
    return {
        "password": password.encode(),
        "sasl.jaas.config": jaas_config(step.user, password).encode(),
    }


def _of_certificate(step: PutCertificate, now_ms: int) -> Mapping[str, bytes]:
    pair = issue(step.authority, Subject(step.user), step.lifetime, now_ms)
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    return {
        "ca.crt": step.authority.certificate,
        "user.crt": pair.certificate,
        "user.key": pair.key,
        "user.p12": pkcs12(pair, step.authority.certificate, password),
        "user.password": password.encode(),
    }
