"""Authorization and certificate authorities: `spec.authorization`, `clusterCa` and `clientsCa`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from ottla_operator.resources.common import Model, Problem, Rule, rules
from ottla_operator.resources.listeners import IssuerRef

_CLASS_OF_CUSTOM: Final = "type custom requires authorizerClass; no other type has it"


class Authorization(Model):
    model_config = rules(
        Rule(
            "superUsers must be names, without ;",
            "!has(self.superUsers) || self.superUsers.all(u, u.matches('^[^;]*[^; ][^;]*$'))",
        ),
        Rule(_CLASS_OF_CUSTOM, "(self.type == 'custom') == has(self.authorizerClass)"),
    )

    type: Literal["simple", "custom"] = Field(
        description="simple: Kafka's ACLs. custom: a class of your own, without ACLs."
    )
    authorizer_class: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        description="The Python class of type custom, as module:Class. Brokers import the module from the "
        "image, or from a volume of template.pod that PYTHONPATH names. The class gets the settings of "
        "config; those that start with authorizer. are its own.",
    )
    super_users: list[Annotated[str, Field(max_length=512)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Names of super users, who may do everything: CN=NAME for a certificate, NAME for SCRAM.",
    )

    def problems(self, path: str) -> Iterator[Problem]:
        """What is wrong with it, at this path."""
        if (self.type == "custom") != (self.authorizer_class is not None):
            yield Problem(f"{path}.authorizerClass", _CLASS_OF_CUSTOM)
        for n, user in enumerate(self.super_users):
            if not user.strip() or ";" in user:
                yield Problem(f"{path}.superUsers[{n}]", f"{user!r} is not allowed: a name, without ;")


class CertificateAuthority(Model):
    """A certificate authority. The certificates that it signs have the same validity and renewal."""

    model_config = rules(
        Rule("renewalDays must be below validityDays", "self.renewalDays < self.validityDays"),
        Rule(
            "issuerRef excludes generateCertificateAuthority: false",
            "!has(self.issuerRef) || self.generateCertificateAuthority",
        ),
    )

    generate_certificate_authority: bool = Field(
        default=True,
        description="Whether the operator makes and renews the authority. false: its key and certificate are "
        "those that others put into its two Secrets (ca.key and ca.crt).",
    )
    issuer_ref: IssuerRef | None = Field(
        default=None,
        description="The issuer of cert-manager that issues the authority's certificate, with a key in a "
        "Secret. Default: the operator makes the authority.",
    )
    validity_days: int = Field(default=365, ge=1, le=36500, description="Days that certificates are valid.")
    renewal_days: int = Field(
        default=30, ge=1, description="Days before its expiration that a certificate is renewed."
    )

    @property
    def is_generated(self) -> bool:
        """Whether the operator makes and renews it."""
        return self.generate_certificate_authority and self.issuer_ref is None

    def problems(self, path: str) -> Iterator[Problem]:
        """What is wrong with it, at this path."""
        if self.issuer_ref is not None and not self.generate_certificate_authority:
            yield Problem(f"{path}.issuerRef", "excludes generateCertificateAuthority: false")
        if self.renewal_days >= self.validity_days:
            yield Problem(
                f"{path}.renewalDays",
                f"{self.renewal_days} is not allowed: must be below validityDays, which is "
                f"{self.validity_days}",
            )
