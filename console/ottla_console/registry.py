"""All pages of the console. A new page is one more line here, and one more folder in `pages`."""

from __future__ import annotations

from typing import Final

from ottla_console.pages import brokers, groups, overview, reassignments, records, topics, transactions
from ottla_console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *overview.PAGES,
    *topics.PAGES,
    *records.PAGES,
    *groups.PAGES,
    *transactions.PAGES,
    *brokers.PAGES,
    *reassignments.PAGES,
)
