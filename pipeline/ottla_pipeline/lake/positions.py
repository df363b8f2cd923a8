"""Which offsets of a topic a backfill may land: those of its range that the lake job has behind it.

Called by the job `backfill`. Pure but for `behind`, which reads the lake job's checkpoint.

The range ends where the last batch ended that the lake job is done with. What comes after that, the job will
land itself: landed here as well, it would be there twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ottla_pipeline.errors import CannotBegin
from ottla_pipeline.lake.files import Files

Offsets = dict[str, dict[str, int]]  # as Spark writes them: topic → partition → the offset that comes next


def behind(files: Files, checkpoint: str) -> Offsets:
    """How far the lake job is: the end of its last batch that is done. CannotBegin if it has done none."""
    done = [int(name) for name in files.names(f"{checkpoint}/commits") if name.isdecimal()]
    if not done:
        raise CannotBegin(
            f"{checkpoint}: the lake job has done no batch yet. Run it first: what it has not read, it lands."
        )
    return offsets_of(files.read(f"{checkpoint}/offsets/{max(done)}"))


def offsets_of(text: str) -> Offsets:
    """The offsets in a file of Spark's offset log: a version, metadata, then a line for each source."""
    found: Offsets = json.loads(text.splitlines()[2])
    return found


def clipped(wanted: Mapping[str, Mapping[str, int]], limits: Mapping[str, Mapping[str, int]]) -> Offsets:
    """`wanted` ends, no further than `limits`. What has no limit has not been read at all: it ends at 0."""
    return {
        topic: {number: min(end, limits.get(topic, {}).get(number, 0)) for number, end in ends.items()}
        for topic, ends in wanted.items()
    }


def nonempty(starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """The partitions in which there is something between start and end."""
    kept = {
        (topic, number)
        for topic, numbers in ends.items()
        for number, end in numbers.items()
        if starts.get(topic, {}).get(number, 0) < end
    }

    def only(offsets: Offsets) -> Offsets:
        found = {
            topic: {number: at for number, at in numbers.items() if (topic, number) in kept}
            for topic, numbers in offsets.items()
        }
        return {topic: numbers for topic, numbers in found.items() if numbers}

    return only(starts), only(ends)
