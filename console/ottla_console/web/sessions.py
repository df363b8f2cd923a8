"""Sessions: who has logged in where. In memory only; clocks and random texts are passed in.

The browser has an opaque id in a cookie. Invariants: an id is never reused, and changes at each log-in; a
session ends after `idle_s` without a request of a person (pages that refresh themselves do not count) and
after `lifetime_s` in any case; there are at most `SESSIONS_MAX`, and those without a log-in end first.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ottla_console.cluster.access import Access

SESSIONS_MAX: Final = 2_000
FLASHES_MAX: Final = 5
FLOWS_MAX: Final = 5
FLOW_S: Final = 600.0
"""For a log-in at a provider."""


@dataclass(frozen=True, slots=True)
class Flash:
    """A message that the next page shows once."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """A log-in at an OpenID provider that this browser has begun."""

    cluster: str
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect_uri: str
    after: str
    until_s: float


@dataclass
class Session:
    """One browser."""

    id: str
    csrf: str
    opened_s: float
    seen_s: float
    accesses: dict[str, Access] = field(default_factory=dict)
    """By cluster."""
    flashes: list[Flash] = field(default_factory=list)
    flows: dict[str, Flow] = field(default_factory=dict)
    """By state; each is used once."""

    def flash(self, text: str, *, failed: bool = False) -> None:
        self.flashes = [*self.flashes, Flash(text, failed)][-FLASHES_MAX:]

    def take_flashes(self) -> list[Flash]:
        found, self.flashes = self.flashes, []
        return found

    def csrf_matches(self, given: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), given.encode("utf-8", "replace"))

    @property
    def logged_in(self) -> bool:
        return any(access.principal for access in self.accesses.values())


class Sessions:
    """All sessions of this process."""

    def __init__(
        self,
        now_s: Callable[[], float],
        random_text: Callable[[], str],
        release: Callable[[Access], None],
        *,
        idle_s: float,
        lifetime_s: float,
        most: int = SESSIONS_MAX,
    ) -> None:
        self._now_s = now_s
        self._random_text = random_text
        self._release = release
        self._idle_s = idle_s
        self._lifetime_s = lifetime_s
        self._most = most
        self._by_id: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self) -> Session:
        self.expire()
        if len(self._by_id) >= self._most:
            self.close(min(self._by_id.values(), key=lambda each: (each.logged_in, each.seen_s)))
        now = self._now_s()
        session = Session(self._random_text(), self._random_text(), now, now)
        self._by_id[session.id] = session
        return session

    def find(self, id_: str | None, *, touch: bool = True) -> Session | None:
        """The session with this id, unless it has ended. `touch`: a person made the request."""
        session = self._by_id.get(id_ or "")
        if session is None:
            return None
        if self._ended(session):
            self.close(session)
            return None
        if touch:
            session.seen_s = self._now_s()
        return session

    def renew(self, session: Session) -> None:
        """A new id and CSRF token: a log-in makes what was known before it worthless."""
        self._by_id.pop(session.id, None)
        session.id, session.csrf = self._random_text(), self._random_text()
        session.opened_s = session.seen_s = self._now_s()
        session.flows.clear()
        self._by_id[session.id] = session

    def begin_flow(self, session: Session, cluster: str, redirect_uri: str, after: str) -> tuple[str, Flow]:
        """The state of a new log-in at a provider, and the log-in; the oldest of too many are forgotten."""
        nonce, verifier = self._random_text(), self._random_text()
        flow = Flow(cluster, nonce, verifier, redirect_uri, after, self._now_s() + FLOW_S)
        state = self._random_text()
        session.flows = dict([*session.flows.items(), (state, flow)][-FLOWS_MAX:])
        return state, flow

    def take_flow(self, session: Session, state: str) -> Flow | None:
        """The log-in with this state, once."""
        flow = session.flows.pop(state, None)
        return flow if flow is not None and self._now_s() < flow.until_s else None

    def close(self, session: Session) -> None:
        """End a session: its credentials are forgotten when no other session has the same."""
        self._by_id.pop(session.id, None)
        for access in session.accesses.values():
            self._release(access)
        session.accesses.clear()
        session.flows.clear()

    def leave(self, session: Session, cluster: str) -> None:
        """Log out of one cluster."""
        access = session.accesses.pop(cluster, None)
        if access is not None:
            self._release(access)

    def expire(self) -> None:
        """Close the sessions that have ended; called at an interval."""
        for session in [each for each in self._by_id.values() if self._ended(each)]:
            self.close(session)

    def close_all(self) -> None:
        for session in list(self._by_id.values()):
            self.close(session)

    def _ended(self, session: Session) -> bool:
        now = self._now_s()
        return now - session.seen_s > self._idle_s or now - session.opened_s > self._lifetime_s
