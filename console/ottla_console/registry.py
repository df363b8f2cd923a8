"""All pages of the console. A new page is one more line here, and one more folder in `pages`."""

from __future__ import annotations

from typing import Final

from ottla_console.pages import (
    acls,
    brokers,
    groups,
    overview,
    partitions,
    pipelines,
    quotas,
    reassignments,
    records,
    resets,
    resources,
    schemas,
    topic_changes,
    topics,
    transactions,
    users,
)
from ottla_console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *overview.PAGES,
    *topics.PAGES,
    *partitions.PAGES,
    *records.PAGES,
    *topic_changes.PAGES,
    *groups.PAGES,
    *resets.PAGES,
    *transactions.PAGES,
    *pipelines.PAGES,
    *schemas.PAGES,
    *brokers.PAGES,
    *reassignments.PAGES,
    *resources.PAGES,
    *acls.PAGES,
    *users.PAGES,
    *quotas.PAGES,
)
