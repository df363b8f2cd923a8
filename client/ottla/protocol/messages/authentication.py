"""SASL authentication of a connection (KIP-43, KIP-152), and SCRAM credentials (KIP-554)."""

from __future__ import annotations

from ottla.protocol.types import Bytes, Int8, Int16, Int32, Int64, Message, String, Struct, field


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    """Selects a SASL mechanism. After version 0, tokens follow without Kafka's request headers."""

    mechanism: String = field("0+")


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    """The enabled mechanisms."""

    error_code: Int16 = field("0+")
    mechanisms: list[String] = field("0+")


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    """A SASL token of the client."""

    auth_bytes: Bytes = field("0+")


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    """A SASL token of the broker; the last one has the lifetime of the session (KIP-368)."""

    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    auth_bytes: Bytes = field("0+")
    session_lifetime_ms: Int64 = field("1+", ignorable=True)


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions="0", flexible="0+"):
    """Describes the SCRAM credentials of users; null: of all users."""

    class UserName(Struct):
        name: String = field("0+")

    users: list[DescribeUserScramCredentialsRequest.UserName] | None = field("0+", nullable="0+")


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0", flexible="0+"):
    """The mechanisms and iterations of each user, without secrets."""

    class CredentialInfo(Struct):
        mechanism: Int8 = field("0+")
        iterations: Int32 = field("0+")

    class DescribeUserScramCredentialsResult(Struct):
        user: String = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = field("0+")


class AlterUserScramCredentialsRequest(Message, api_key=51, versions="0", flexible="0+"):
    """Deletes and sets SCRAM credentials; the client sends salted passwords."""

    class ScramCredentialDeletion(Struct):
        name: String = field("0+")
        mechanism: Int8 = field("0+")

    class ScramCredentialUpsertion(Struct):
        name: String = field("0+")
        mechanism: Int8 = field("0+")
        iterations: Int32 = field("0+")
        salt: Bytes = field("0+")
        salted_password: Bytes = field("0+")

    deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = field("0+")
    upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = field("0+")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions="0", flexible="0+"):
    """The result of each user."""

    class AlterUserScramCredentialsResult(Struct):
        user: String = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = field("0+")
