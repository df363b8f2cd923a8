"""Favourite topics: names in a cookie of each cluster, so that nothing is stored on the console. Pure."""

from __future__ import annotations

import re
from typing import Final

AGE_S: Final = 365 * 24 * 3600
BYTES_MAX: Final = 3_500
"""Browsers keep cookies of 4 KiB."""
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def cookie(cluster: str) -> str:
    return f"ottla-favourites-{cluster}"


def read(text: str | None) -> frozenset[str]:
    """The names in a cookie; what is no name of a topic is dropped."""
    return frozenset(name for name in (text or "").split(":") if _LEGAL.fullmatch(name))


def written(names: frozenset[str]) -> str:
    """The value of the cookie, with as many names as it can hold."""
    text = ""
    for name in sorted(names):
        joined = f"{text}:{name}" if text else name
        if len(joined) > BYTES_MAX:
            break
        text = joined
    return text


def toggled(names: frozenset[str], name: str) -> frozenset[str]:
    """With the name if it was not there, else without it."""
    return names ^ {name} if _LEGAL.fullmatch(name) else names
