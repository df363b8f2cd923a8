"""Delegation tokens (KIP-48)."""

from __future__ import annotations

from ottla.protocol.types import Bytes, Int16, Int32, Int64, Message, String, Struct, field


class CreateDelegationTokenRequest(Message, api_key=38, versions="0-3", flexible="2+"):
    """Creates a token for the authenticated user; from version 3 also for another owner (KIP-373)."""

    class CreatableRenewers(Struct):
        principal_type: String = field("0+")
        principal_name: String = field("0+")

    owner_principal_type: String | None = field("3+", nullable="3+")
    owner_principal_name: String | None = field("3+", nullable="3+")
    renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = field("0+")
    max_lifetime_ms: Int64 = field("0+")


class CreateDelegationTokenResponse(Message, api_key=38, versions="0-3", flexible="2+"):
    """The token with its HMAC and times."""

    error_code: Int16 = field("0+")
    principal_type: String = field("0+")
    principal_name: String = field("0+")
    token_requester_principal_type: String = field("3+")
    token_requester_principal_name: String = field("3+")
    issue_timestamp_ms: Int64 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    max_timestamp_ms: Int64 = field("0+")
    token_id: String = field("0+")
    hmac: Bytes = field("0+")
    throttle_time_ms: Int32 = field("0+")


class RenewDelegationTokenRequest(Message, api_key=39, versions="0-2", flexible="2+"):
    """Renews a token."""

    hmac: Bytes = field("0+")
    renew_period_ms: Int64 = field("0+")


class RenewDelegationTokenResponse(Message, api_key=39, versions="0-2", flexible="2+"):
    """The token's new expiry time."""

    error_code: Int16 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    throttle_time_ms: Int32 = field("0+")


class ExpireDelegationTokenRequest(Message, api_key=40, versions="0-2", flexible="2+"):
    """Changes the expiry time of a token; a negative period expires it now."""

    hmac: Bytes = field("0+")
    expiry_time_period_ms: Int64 = field("0+")


class ExpireDelegationTokenResponse(Message, api_key=40, versions="0-2", flexible="2+"):
    """The token's new expiry time."""

    error_code: Int16 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    throttle_time_ms: Int32 = field("0+")


class DescribeDelegationTokenRequest(Message, api_key=41, versions="0-3", flexible="2+"):
    """Describes the tokens of owners; null: all that the user may describe."""

    class DescribeDelegationTokenOwner(Struct):
        principal_type: String = field("0+")
        principal_name: String = field("0+")

    owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = field(
        "0+", nullable="0+"
    )


class DescribeDelegationTokenResponse(Message, api_key=41, versions="0-3", flexible="2+"):
    """The tokens with their HMACs."""

    class DescribedDelegationTokenRenewer(Struct):
        principal_type: String = field("0+")
        principal_name: String = field("0+")

    class DescribedDelegationToken(Struct):
        principal_type: String = field("0+")
        principal_name: String = field("0+")
        token_requester_principal_type: String = field("3+")
        token_requester_principal_name: String = field("3+")
        issue_timestamp: Int64 = field("0+")
        expiry_timestamp: Int64 = field("0+")
        max_timestamp: Int64 = field("0+")
        token_id: String = field("0+")
        hmac: Bytes = field("0+")
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = field("0+")

    error_code: Int16 = field("0+")
    tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = field("0+")
    throttle_time_ms: Int32 = field("0+")
