"""Delegation tokens (KIP-48, KIP-373). A connection that is authenticated by a token cannot create tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.client.admin.network import AdminNetwork, raise_error
from ottla.client.admin_types import DelegationToken
from ottla.protocol import messages as m


async def create_delegation_token(
    network: AdminNetwork,
    *,
    owner: str | None = None,
    renewers: Iterable[str] = (),
    max_lifetime_ms: int = -1,
) -> DelegationToken:
    """Create a token for the authenticated user or another owner. Principals have the form `User:alice`; a
    lifetime of -1 is the broker's maximum. Raises KafkaError."""
    request = m.CreateDelegationTokenRequest
    kind, name = (None, None) if owner is None else _principal(owner)
    given = list(renewers)
    rows = [
        request.CreatableRenewers(principal_type=kind, principal_name=name)
        for kind, name in map(_principal, given)
    ]
    response = await network.any_broker(
        request(
            owner_principal_type=kind,
            owner_principal_name=name,
            renewers=rows,
            max_lifetime_ms=max_lifetime_ms,
        )
    )
    raise_error(response.error_code)
    return DelegationToken(
        response.token_id,
        f"{response.principal_type}:{response.principal_name}",
        f"{response.token_requester_principal_type}:{response.token_requester_principal_name}",
        tuple(given),
        response.issue_timestamp_ms,
        response.expiry_timestamp_ms,
        response.max_timestamp_ms,
        bytes(response.hmac),
    )


async def renew_delegation_token(network: AdminNetwork, hmac: bytes, *, period_ms: int = -1) -> int:
    """Renew a token; returns its new expiry time in ms. Raises KafkaError."""
    response = await network.any_broker(m.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))
    raise_error(response.error_code)
    return int(response.expiry_timestamp_ms)


async def expire_delegation_token(network: AdminNetwork, hmac: bytes, *, period_ms: int = -1) -> int:
    """Change the expiry time of a token, with -1 to now; returns it in ms. Raises KafkaError."""
    request = m.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    response = await network.any_broker(request)
    raise_error(response.error_code)
    return int(response.expiry_timestamp_ms)


async def describe_delegation_tokens(
    network: AdminNetwork, owners: Iterable[str] | None = None
) -> tuple[DelegationToken, ...]:
    """The tokens of these owners, None: all that the caller may describe. Raises KafkaError."""
    request = m.DescribeDelegationTokenRequest
    row = request.DescribeDelegationTokenOwner
    wanted = None
    if owners is not None:
        wanted = [row(principal_type=k, principal_name=n) for k, n in map(_principal, owners)]
    response = await network.any_broker(request(owners=wanted))
    raise_error(response.error_code)
    return tuple(map(_token, response.tokens))


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"principal {text!r}: must be of the form User:alice")
    return kind, name


def _token(row: Any) -> DelegationToken:
    return DelegationToken(
        row.token_id,
        f"{row.principal_type}:{row.principal_name}",
        f"{row.token_requester_principal_type}:{row.token_requester_principal_name}",
        tuple(f"{each.principal_type}:{each.principal_name}" for each in row.renewers),
        row.issue_timestamp,
        row.expiry_timestamp,
        row.max_timestamp,
        bytes(row.hmac),
    )
