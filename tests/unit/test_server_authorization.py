"""Authorization checks: every API has one, or needs none."""

from __future__ import annotations

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.protocol.api import API_TABLE
from ottla.server.authorization.auth_helper import java_address
from ottla.server.authorization.checks_by_api import WITHOUT_CHECK, checks_by_api


def test_every_api_has_a_check_or_needs_none() -> None:
    checks = checks_by_api(BrokerConfig.from_properties({}), MetadataCache("PLAINTEXT"), lambda: True)
    assert not checks.keys() & WITHOUT_CHECK
    assert checks.keys() | WITHOUT_CHECK >= set(API_TABLE)


@pytest.mark.parametrize(
    ("host", "java"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_addresses_are_written_as_java_does(host: str, java: str) -> None:
    assert java_address(host) == java
