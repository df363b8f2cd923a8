"""A principal is written and read as Kafka writes it."""

from __future__ import annotations

import pytest

from ottla.security.principals import ANONYMOUS, Principal


def test_a_principal_is_written_as_type_and_name() -> None:
    assert str(Principal("User", "alice")) == "User:alice"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


def test_a_name_may_hold_colons() -> None:
    assert Principal.parse("User:CN=a:b,O=c") == Principal("User", "CN=a:b,O=c")


@pytest.mark.parametrize("text", ["", "alice"])
def test_a_principal_without_a_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="principalType:principalName"):
        Principal.parse(text)
