"""How far the mirror of a source partition is: the offset to go on from, committed with each transaction.

Pure; called by the writer. A position is an offset that the mirror's own consumer group has committed on the
target, for the *target's* topic and partition (Kafka commits none for topics that it lacks). It travels in
the transaction that carries the records (`send_offsets_to_transaction`), so that both are there or neither
is; what else is to be known stands in the commit's metadata.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ottla_pipeline.mirroring.translation import Lineage


class PositionRefused(Exception):
    """A committed position does not belong to what is to be mirrored; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Position:
    """`offset` is the next of the source to be mirrored; `number` that of the next transaction."""

    lineage: Lineage
    offset: int = 0
    number: int = 0

    def metadata(self) -> str:
        body = {"source": self.lineage.source, "target": self.lineage.target, "number": self.number}
        return json.dumps(body, separators=(",", ":"))

    @staticmethod
    def parse(offset: int, metadata: str | None) -> Position:
        """Of a commit; PositionRefused if somebody else made it."""
        try:
            body = json.loads(metadata or "")
            return Position(Lineage(str(body["source"]), str(body["target"])), offset, int(body["number"]))
        except (ValueError, KeyError, TypeError):
            raise PositionRefused(
                f"offset {offset} was committed with the metadata {metadata!r}, which no mirror wrote"
            ) from None


def position_for(found: Position | None, lineage: Lineage, what: str) -> Position:
    """Where to go on, given the position that was found, and which topics there are now.

    A target topic that was made anew holds nothing of the source: it is filled from wherever the batch
    begins. A source topic that was made anew has other records at the same offsets: nobody but its owner
    can say what is to become of the old ones.
    """
    if found is None or found.lineage.target != lineage.target:
        return Position(lineage)
    if found.lineage.source != lineage.source:
        raise PositionRefused(
            f"{what} is mirrored up to offset {found.offset} from the topic {found.lineage.source}, and the "
            f"source has another of that name now, {lineage.source} (cluster/topic id). Delete the target's "
            "topic, or mirror under another name, and start with a new checkpoint"
        )
    return found
