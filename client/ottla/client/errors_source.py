"""Writes `errors_by_code.py`, a class for each code of Kafka's table: `python -m ottla.client.errors_source`.

They stand in a file so that type checkers, editors and readers see them. A test compares the file with what
this makes of `ottla.protocol.errors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ottla.protocol.errors import ErrorCode

_KINDS: Final = {
    "InvalidMetadataError": (
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "AuthenticationError": (
        ErrorCode.ILLEGAL_SASL_STATE,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    ),
    "AuthorizationError": (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}
"""By the class that Kafka's exception extends, where it is one that clients treat alike."""

_BUILTINS: Final = {ErrorCode.REQUEST_TIMED_OUT: "TimeoutError"}
_SUFFIXES: Final = ("_EXCEPTION", "_ERROR")

_HEAD: Final = '''"""A class for each error code of Kafka 3.9.

Written by `python -m ottla.client.errors_source`; change that.
"""

from __future__ import annotations

from typing import Final

from ottla.client.error_kinds import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    InvalidMetadataError,
    RetriableError,
)
from ottla.protocol.errors import ErrorCode
'''


def class_name(code: ErrorCode) -> str:
    """NOT_LEADER_OR_FOLLOWER is NotLeaderOrFollowerError; KAFKA_STORAGE_ERROR does not say it twice."""
    name = code.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return "".join(word.capitalize() for word in name.split("_")) + "Error"


def bases(code: ErrorCode) -> list[str]:
    kinds = [kind for kind, codes in _KINDS.items() if code in codes]
    if code.retriable and not kinds:
        kinds = ["RetriableError"]
    return [*kinds, "BrokerError", *([_BUILTINS[code]] if code in _BUILTINS else [])]


def source() -> str:
    codes = [code for code in ErrorCode if code is not ErrorCode.NONE]
    classes = [
        f"\n\nclass {class_name(code)}({', '.join(bases(code))}):\n"
        f'    """{code.message[0].upper()}{code.message[1:]}"""\n\n'
        f"    code = ErrorCode.{code.name}\n"
        for code in codes
    ]
    table = "".join(f"    {int(code)}: {class_name(code)},\n" for code in codes)
    return f"{_HEAD}{''.join(classes)}\n\nBY_CODE: Final[dict[int, type[BrokerError]]] = {{\n{table}}}\n"


if __name__ == "__main__":
    Path(__file__).with_name("errors_by_code.py").write_text(source())
