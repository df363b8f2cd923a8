"""Unit tests ask no other machine: a name that is not this machine's is an error."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import pytest

HERE = {None, "", "localhost", b"localhost"}


@pytest.fixture(scope="module", autouse=True)
def _no_name_is_resolved() -> Iterator[None]:
    resolve = socket.getaddrinfo

    def here(host: Any, *arguments: Any, **more: Any) -> Any:
        if host not in HERE:
            try:
                ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
            except ValueError:
                raise AssertionError(f"a unit test resolves the name {host!r}") from None
        return resolve(host, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", here)
        yield
