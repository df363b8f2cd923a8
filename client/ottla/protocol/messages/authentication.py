"""Who is on the connection: SASL (KIP-43, KIP-152), and the SCRAM credentials behind it (KIP-554)."""

from __future__ import annotations

from ottla.protocol.types import Bytes, Int8, Int16, Int32, Int64, Message, String, Struct, field


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    """Choose a mechanism. After version 0, raw tokens follow without frames of their own."""

    mechanism: String = field("0+")


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    """The mechanisms there are."""

    error_code: Int16 = field("0+")
    mechanisms: list[String] = field("0+")


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    """The client's next token."""

    auth_bytes: Bytes = field("0+")


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    """The broker's; at the end, when to authenticate anew (KIP-368)."""

    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    auth_bytes: Bytes = field("0+")
    session_lifetime_ms: Int64 = field("1+", ignorable=True)


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions="0", flexible="0+"):
    """Mechanisms and iterations of users, of all of them when null."""

    class UserName(Struct):
        name: String = field("0+")

    users: list[DescribeUserScramCredentialsRequest.UserName] | None = field("0+", nullable="0+")


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0", flexible="0+"):
    """Never the secrets themselves."""

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
    """Delete and set credentials; passwords arrive salted."""

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
    """The outcome per user."""

    class AlterUserScramCredentialsResult(Struct):
        user: String = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = field("0+")
