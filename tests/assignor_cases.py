"""Groups and subscriptions as input for assignors, and the assignments, as lines of text.

The unit tests compare with recorded assignments of Kafka's assignors; the interop tests run Kafka's
assignors.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ottla.client.core.assignment import Assignments, PartitionRacks, Subscription, encode_subscription
from ottla.client.core.assignors import BY_NAME, as_assignment
from ottla.client.core.sticky import encode_share
from ottla.client.core.types import TopicPartition

RACKS = ("r1", "r2", "r3")


@dataclass(frozen=True)
class Case:
    assignor: str
    topics: dict[str, PartitionRacks]
    members: dict[str, Subscription] = field(default_factory=dict)

    def line(self) -> str:
        """The case in the format that `Assignors.java` reads."""
        topics = [
            f"{topic}:{','.join('+'.join(sorted(racks)) for racks in partitions)}"
            for topic, partitions in self.topics.items()
        ]
        members = [
            f"{name}:{member.instance_id or ''}:{base64.b64encode(encode_subscription(member)).decode()}"
            for name, member in self.members.items()
        ]
        return "\t".join((self.assignor, " ".join(topics), " ".join(members)))

    def decide(self) -> Assignments:
        """The assignment that Ottla's assignor makes of this case."""
        subscribed = {topic for member in self.members.values() for topic in member.topics}
        topics = {topic: racks for topic, racks in self.topics.items() if topic in subscribed}
        found = BY_NAME[self.assignor]().assign(topics, self.members)
        return {name: list(as_assignment(share).partitions) for name, share in found.items()}


def shown(assignments: Mapping[str, list[TopicPartition]]) -> str:
    """The assignment in the format that `Assignors.java` prints."""
    return " ".join(f"{name}={','.join(sorted(map(str, assignments[name])))}" for name in sorted(assignments))


def scenario(seed: int) -> Iterator[Case]:
    """One group in rebalance after rebalance: members come and go, subscriptions and topics change."""
    dice = random.Random(seed)
    assignor = dice.choice(sorted(BY_NAME))
    alike = dice.random() < 0.6
    with_racks = dice.random() < 0.3
    everywhere = tuple(f"topic-{name}" for name in "abcdefg"[: dice.randint(1, 7)])
    topics = {name: _partitions(dice, dice.randint(1, 12), with_racks) for name in everywhere}
    case = Case(assignor, topics)
    for generation in range(dice.randint(1, 6)):
        for _ in range(dice.randint(1, 4)):
            _change(dice, case, alike, with_racks)
        if not case.members:
            continue
        yield case
        case = replace(case, members=_after(case, generation + 1, dice))


def _partitions(dice: random.Random, count: int, with_racks: bool) -> PartitionRacks:
    def racks() -> frozenset[str]:
        return frozenset(dice.sample(RACKS, 2)) if with_racks else frozenset()

    return tuple(racks() for _ in range(count))


def _change(dice: random.Random, case: Case, alike: bool, with_racks: bool) -> None:
    names = sorted(case.topics)
    if case.members and dice.random() < 0.25:
        del case.members[dice.choice(sorted(case.members))]
        return
    if dice.random() < 0.1:
        topic = dice.choice(names)
        more = len(case.topics[topic]) + dice.randint(1, 3)
        case.topics[topic] = _partitions(dice, more, with_racks)
        return
    subscribed = names if alike else sorted(dice.sample(names, dice.randint(1, len(names))))
    number = dice.randint(0, 99)
    case.members[f"consumer-{number}-{dice.getrandbits(32):08x}"] = Subscription(
        topics=tuple(subscribed),
        user_data=BY_NAME[case.assignor]().subscription_user_data(()),
        rack=dice.choice(RACKS) if with_racks else None,
        instance_id=f"instance-{number}" if dice.random() < 0.1 else None,
    )


def _after(case: Case, generation: int, dice: random.Random) -> dict[str, Subscription]:
    """The members as they rejoin; some missed the last generation."""
    members = {}
    for name, share in case.decide().items():
        member = case.members[name]
        if dice.random() < 0.9:
            known = generation
        else:
            share, known = list(member.owned), member.generation
        if case.assignor == "sticky":
            member = member._replace(user_data=encode_share(share, known), generation=known)
            member = member._replace(owned=tuple(share))
        elif case.assignor == "cooperative-sticky":
            member = member._replace(owned=tuple(sorted(share)), generation=known)
        members[name] = member
    return members
