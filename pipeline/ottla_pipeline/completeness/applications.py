"""What an application's consumers said to have processed, as counts of its tiers.

Called by `watching` with the audit events of consumers. Pure.
"""

from __future__ import annotations

from collections import Counter

from ottla_pipeline.auditing.events import ConsumerEvent, Receipt
from ottla_pipeline.completeness.config import AuditConfig, TierConfig
from ottla_pipeline.completeness.ledger import Counted, Ledger
from ottla_pipeline.completeness.seen import BITS, FULL


def add(ledger: Ledger, config: AuditConfig, event: ConsumerEvent) -> None:
    """An event of an application that is no tier is noted, and its counts are left out."""
    ledger.add_receipts(
        event,
        {
            tier.name: _held(config, tier, event)
            for tier in config.tiers
            if tier.application == event.application
        },
    )


def _held(
    config: AuditConfig, tier: TierConfig, event: ConsumerEvent
) -> tuple[list[Counted], Counter[tuple[str, int]]]:
    wanted = config.topics if tier.topics is None else tier.topics
    rows: list[Counted] = []
    rejected: Counter[tuple[str, int]] = Counter()
    for receipt in event.receipts:
        topic = receipt.topic.removeprefix(tier.topic_prefix)
        if not receipt.topic.startswith(tier.topic_prefix) or not wanted.fits(topic):
            continue
        rows += _rows(receipt, topic)
        if receipt.rejected:
            rejected[topic, receipt.start_ms] += receipt.rejected
    for name, records in event.unaudited.items():
        topic = name.removeprefix(tier.topic_prefix)
        if records and name.startswith(tier.topic_prefix) and wanted.fits(topic):
            rows.append(Counted(topic, None, 0, 0, 0, records))
    return rows, rejected


def _rows(receipt: Receipt, topic: str) -> list[Counted]:
    """A row for each bucket of numbers. Which number was a copy is not told: they count in the first row."""
    bucket, shift = divmod(receipt.first, BITS)
    left, copies = receipt.bits << shift, receipt.received - receipt.bits.bit_count()
    rows: list[Counted] = []
    while left:
        if bits := left & FULL:
            count = bits.bit_count() + copies
            copies = 0
            rows.append(Counted(topic, receipt.producer, receipt.start_ms, bucket, bits, count))
        left >>= BITS
        bucket += 1
    return rows
