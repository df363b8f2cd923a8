"""Guards before handlers: every API has one, or needs none."""

from __future__ import annotations

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.protocol.api import API_TABLE
from ottla.server.authorization.access import java_address
from ottla.server.authorization.table import OPEN, guards


def test_every_api_has_been_thought_about() -> None:
    guarded = guards(BrokerConfig.from_properties({}), MetadataCache("PLAINTEXT"), lambda: True)
    assert not guarded.keys() & OPEN
    assert guarded.keys() | OPEN >= set(API_TABLE)


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
