"""JSON paths (RFC 9535): filters that readers write, and masks that administrators configure. Pure.

A reader's path must not keep the console busy: it is short, has few parts that multiply the work, and no
regular expressions. A mask has no such limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.exceptions import JSONPathRecursionError
from jsonpath.segments import JSONPathChildSegment
from jsonpath.selectors import IndexSelector, NameSelector

TEXT_MAX: Final = 200
"""Characters of a reader's path."""
WIDE_MAX: Final = 3
"""Parts of a reader's path that select many values."""
FOUND_MAX: Final = 1_000
"""Values that a reader's path looks at in one document."""
MASKED: Final = "•••"
_WIDE: Final = ("..", "*", "?", ":", ",")


class BadPath(ValueError):
    """Not a path, or one that is not allowed; the message says why."""


class Path:
    """A parsed path."""

    def __init__(self, text: str) -> None:
        """Raises BadPath."""
        self.text = text
        environment = JSONPathEnvironment(strict=True)
        for name in ("match", "search"):  # a regular expression may take any time
            environment.function_extensions.pop(name)
        try:
            found = environment.compile(text)
        except (JSONPathError, RecursionError) as error:
            reason = error.args[0] if error.args else "nested too deeply"  # its str() may fail
            raise BadPath(f"{text}: {reason}; for example $.customer.id") from None
        if not isinstance(found, JSONPath):
            raise BadPath(f"{text}: one path, without | and &")
        self._path = found
        self._steps = _steps(found)

    def values(self, document: Any) -> Iterator[Any]:
        """What the path selects, FOUND_MAX values at most."""
        if self._steps is not None:
            yield from _at(document, self._steps)
            return
        try:
            for each in islice(self._path.finditer(document), FOUND_MAX):
                yield each.value
        except (JSONPathRecursionError, RecursionError):
            return

    def places(self, document: Any) -> list[tuple[str | int, ...]]:
        """Where the selected values are. Raises RecursionError for a document that is too deep."""
        try:
            return [tuple(each.parts) for each in self._path.finditer(document)]
        except JSONPathRecursionError as error:
            raise RecursionError(str(error)) from None


def _steps(path: JSONPath) -> tuple[str | int, ...] | None:
    """The names and indexes of a path that has nothing else, which needs no library to be followed."""
    found: list[str | int] = []
    for segment in path.segments:
        if not isinstance(segment, JSONPathChildSegment) or len(segment.selectors) != 1:
            return None
        selector = segment.selectors[0]
        if isinstance(selector, NameSelector):
            found.append(selector.name)
        elif isinstance(selector, IndexSelector):
            found.append(selector.index)
        else:
            return None
    return tuple(found)


def _at(document: Any, steps: Sequence[str | int]) -> Iterator[Any]:
    for step in steps:
        if isinstance(step, str):
            if not isinstance(document, dict) or step not in document:
                return
        elif not isinstance(document, list) or not -len(document) <= step < len(document):
            return
        document = document[step]
    yield document


def of_reader(text: str) -> Path:
    """A path that a reader wrote. Raises BadPath."""
    if len(text) > TEXT_MAX:
        raise BadPath(f"a path has at most {TEXT_MAX} characters")
    bare = _without_strings(text)
    if sum(bare.count(each) for each in _WIDE) > WIDE_MAX:
        raise BadPath(f"a path has at most {WIDE_MAX} of {' '.join(_WIDE)}")
    return Path(text)


def _without_strings(text: str) -> str:
    out, quote, escaped = [], "", False
    for each in text:
        if quote:
            if escaped or each == "\\":
                escaped = not escaped
            elif each == quote:
                quote = ""
        elif each in "'\"":
            quote = each
        else:
            out.append(each)
    return "".join(out)


def masked(document: Any, paths: Sequence[Path]) -> Any:
    """The document with MASKED in place of what the paths select; it is changed in place. Raises
    RecursionError for a document that is too deep: it must not be shown."""
    for path in paths:
        for place in path.places(document):
            if not place:
                return MASKED
            parent = document
            for step in place[:-1]:
                if parent == MASKED:
                    break
                parent = parent[step]
            if isinstance(parent, dict | list):
                parent[place[-1]] = MASKED  # type: ignore[index]
    return document
