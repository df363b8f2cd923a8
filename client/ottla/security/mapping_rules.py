"""ssl.principal.mapping.rules: maps the subject of a certificate to a user name (KIP-371).

The first rule whose pattern matches the whole subject applies: `DEFAULT`, the subject itself, or
`RULE:pattern/replacement/` with an optional L or U for lower or upper case. Patterns are Java's regular
expressions, as far as Python's have the same syntax.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/"
    r"(?P<case>[LU]?))\s*(?:,\s*|$)"
)
_REFERENCE: Final = re.compile(r"\$(\d)")


class Rule(NamedTuple):
    """One rule. `pattern` None: the subject itself."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""


class MappingRules:
    """Parsed once per listener; `name_of` per connection."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for invalid rules."""
        self._text = text
        self._rules = _parse(text)

    def name_of(self, subject: str) -> str:
        """The user name. Raises ValueError when no rule applies."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            if rule.pattern.fullmatch(subject):
                name = rule.pattern.sub(rule.replacement, subject)
                return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        raise ValueError(f"No rules apply to {subject}, rules {self._text}")


def _parse(text: str) -> list[Rule]:
    rules: list[Rule] = []
    position, text = 0, text.strip()
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(f"Invalid rule: `{text[position:]}`")
        if found["default"]:
            rules.append(Rule(None))
        else:
            try:
                pattern = re.compile(found["pattern"])
            except re.error as problem:
                raise ValueError(f"Invalid rule: `{found[0].strip(' ,')}`: {problem}") from None
            rules.append(Rule(pattern, _replacement(found["replacement"], pattern.groups), found["case"]))
        position = found.end()
    return rules or [Rule(None)]


def _replacement(text: str, groups: int) -> str:
    """The replacement in Python's syntax. A reference to a missing group is literal text."""

    def reference(found: re.Match[str]) -> str:
        return rf"\g<{found[1]}>" if int(found[1]) <= groups else found[0]

    return _REFERENCE.sub(reference, text.replace("\\", r"\\"))
