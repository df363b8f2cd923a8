"""Java properties files, which Kafka keeps settings in.

Called by whoever reads a broker's or a client's settings from a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ottla.metadata.config_def import ConfigError

_PROPERTY: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file: `key=value` or `key: value`, # and ! comments, \\ joins lines.

    Raises ConfigError when the file cannot be read, or for a line with no key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"cannot read {path}: {reason}"]) from None
    settings: dict[str, str] = {}
    pending, joined = "", False
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.lstrip()
        if not joined and (not line or line[0] in "#!"):
            continue
        pending, joined = "", (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if joined:
            pending = line[:-1]
            continue
        found = _PROPERTY.match(line)
        assert found is not None, "every line matches"
        if not found[1]:
            raise ConfigError([f"{path}:{number}: a line with a value and no name: {raw.strip()}"])
        settings[_unescaped(found[1])] = _unescaped(found[2].rstrip())
    return settings


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _ESCAPED.get(m[2], m[2]), text)
