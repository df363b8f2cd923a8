"""What a rehearsed change means: for brokers, partitions and clients, as JSON and as text.

Called by `kubectl ottla plan` and `ottla up --plan`. The text is made of the JSON, so that both say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from ottla_operator.planning.observed import PartitionKey, partition_name
from ottla_operator.rehearsal.effects import Effect
from ottla_operator.rehearsal.model import Timing
from ottla_operator.rehearsal.rehearse import Loss, Rehearsal, Situation, Step
from ottla_operator.resources import AnyResource
from ottla_operator.resources.listeners import INTER_BROKER_LISTENER

Object = dict[str, Any]

_STOP: Final = re.compile(r"^stop broker ([0-9]+): rolling restart: (.*)$")
_SERVER: Final = re.compile(r"^replace pod (\S+)$")
_SHOWN: Final = 8
_STEPS_SHOWN: Final = 100
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group with its members."""

    id: str
    state: str = ""
    coordinator: int = -1
    members: Sequence[str] = ()
    """client.id@host of each."""
    topics: Sequence[str] = ()
    """Of the partitions that are assigned to members."""


@dataclass(frozen=True, slots=True)
class Clients:
    """What brokers know of their clients."""

    groups: Sequence[Group] = ()
    connections: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """The number of connections of each broker, by listener."""


def clients_of(answer: Object) -> Clients:
    """The clients in an answer of `probe`."""
    groups = [
        Group(each["group"], each["state"], each["coordinator"], each["members"], each["topics"])
        for each in answer.get("groups", ())
    ]
    return Clients(groups, {int(broker): found for broker, found in answer.get("connections", {}).items()})


@dataclass(frozen=True, slots=True)
class Change:
    """A resource that the change creates, deletes or alters, and the fields."""

    key: str
    created: bool = False
    deleted: bool = False
    paths: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """Everything that the report is about."""

    situation: Situation
    changes: Sequence[Change]
    rehearsal: Rehearsal
    clients: Clients = field(default_factory=Clients)
    assumptions: Sequence[str] = ()
    pending: Sequence[Step] = ()
    """Steps that are due without the change."""
    notes: Sequence[str] = ()
    loss: Loss | None = None
    effects: Sequence[Effect] = ()
    """On Users, ConsumerGroups and Pipelines."""

    @property
    def changes_something(self) -> bool:
        return bool(self.changes or self.rehearsal.steps)


def changed_paths(old: AnyResource | None, new: AnyResource) -> list[str]:
    """The fields of the spec that differ, and the operator's annotations."""
    # With defaults, which the API server has written into the old one.
    before = old.spec.model_dump(by_alias=True) if old is not None else {}
    found = list(_differing(before, new.spec.model_dump(by_alias=True), "spec"))
    earlier, later = (
        {name: value for name, value in each.metadata.annotations.items() if name.startswith("ottla.dev/")}
        if each is not None
        else {}
        for each in (old, new)
    )
    return found + list(_differing(earlier, later, "metadata.annotations"))


def _differing(old: Any, new: Any, path: str) -> Iterator[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield path
        return
    for name in sorted({*old, *new}):
        yield from _differing(old.get(name), new.get(name), _joined(path, name))


def _joined(path: str, name: str) -> str:
    return f"{path}[{name}]" if "." in name or "/" in name else f"{path}.{name}"


def json_of(planned: Planned) -> Object:
    """The report for programs. Times are in seconds since the change."""
    rehearsal, situation = planned.rehearsal, planned.situation
    restarts, servers = _restarts(rehearsal.steps)
    report: Object = {
        "cluster": situation.cluster.metadata.name,
        "changes": [
            {
                "resource": each.key,
                "created": each.created,
                "deleted": each.deleted,
                "fields": list(each.paths),
            }
            for each in planned.changes
        ],
        "warnings": [
            *(f"{each.key}: {note}" for each in situation.resources for note in each.notes()),
            *rehearsal.warnings,
        ],
        "pending": [_step(step) for step in planned.pending],
        "steps": [_step(step) for step in rehearsal.steps],
        "effects": [
            {"resource": each.resource, "steps": list(each.steps)} for each in planned.effects if each.steps
        ],
        "restarts": {"brokers": restarts, "zooKeeperServers": servers},
        "bytesToMove": rehearsal.moved_bytes,
        "seconds": round(rehearsal.duration_ms / 1000),
        "assumptions": list(planned.assumptions),
        "partitions": {
            "atMinIsr": _partitions(rehearsal.at_min),
            "underMinIsr": _partitions(rehearsal.under_min),
            "offline": _partitions(rehearsal.offline),
        },
        "clients": list(_noticing(planned, [each["broker"] for each in restarts])),
        "completes": rehearsal.converged,
        "waiting": list(rehearsal.waiting),
        "notes": list(planned.notes),
    }
    if planned.loss is not None:
        report["loss"] = _loss(planned.loss)
    return report


def _step(step: Step) -> Object:
    return {
        "number": step.number,
        "atSeconds": round(step.at_ms / 1000),
        "kind": step.kind,
        "resource": step.resource,
        "step": step.text,
    }


def _restarts(steps: Sequence[Step]) -> tuple[list[Object], list[str]]:
    brokers, servers = [], []
    for step in steps:
        stopped, replaced = _STOP.match(step.text), _SERVER.match(step.text)
        if step.kind == "StopBroker" and stopped:
            brokers.append({"broker": int(stopped[1]), "reason": stopped[2]})
        elif replaced:
            servers.append(replaced[1])
    return brokers, servers


def _partitions(found: Mapping[PartitionKey, int]) -> list[Object]:
    return [{"partition": partition_name(key), "step": found[key]} for key in sorted(found)]


def _noticing(planned: Planned, restarted: Sequence[int]) -> Iterator[Object]:
    """The clients that notice, and why."""
    rehearsal = planned.rehearsal
    moved = {topic for topic, _ in rehearsal.new_leaders}
    tight = {topic for topic, _ in (*rehearsal.at_min, *rehearsal.under_min, *rehearsal.offline)}
    for group in planned.clients.groups:
        if not group.members:
            continue
        of_group = {*group.topics}
        why = []
        leaders = sum(topic in of_group for topic, _ in rehearsal.new_leaders)
        if of_group & moved:
            why.append(f"{leaders} of its partitions change their leader")
        if of_group & tight:
            why.append(f"{', '.join(sorted(of_group & tight))} at or below min.insync.replicas")
        if group.coordinator in restarted:
            why.append(f"its coordinator, broker {group.coordinator}, restarts")
        why += [text for effect in planned.effects if effect.group == group.id for text in effect.why]
        if why:
            yield {"group": group.id, "members": list(group.members), "why": why}
    for effect in planned.effects:
        if effect.principal:
            yield {"principal": effect.principal, "why": list(effect.why)}
    for broker in dict.fromkeys(restarted):
        for listener, count in sorted(planned.clients.connections.get(broker, {}).items()):
            if count and listener.lower() != INTER_BROKER_LISTENER:
                why = [f"broker {broker} restarts"]
                yield {"broker": broker, "listener": listener, "connections": count, "why": why}


def _loss(loss: Loss) -> Object:
    health = loss.moment.health
    return {
        "broker": loss.broker,
        "atSeconds": round(loss.moment.at_ms / 1000),
        "afterStep": _step(loss.after) if loss.after is not None else None,
        "underMinIsr": [partition_name(key) for key in sorted(health.under_min)],
        "offline": [partition_name(key) for key in sorted(health.offline)],
        "waits": bool(loss.waiting),
        "waiting": list(loss.waiting),
        "stepsAfter": [_step(step) for step in loss.rest],
    }


# ---- text


def text_of(report: Object) -> str:
    """The report for people."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Object) -> Iterator[str]:
    for change in report["changes"]:
        what = "create" if change["created"] else "delete" if change["deleted"] else "change"
        fields = f": {_listed(change['fields'])}" if change["fields"] and not change["created"] else ""
        yield f"{what} {change['resource']}{fields}"
    if not report["changes"]:
        yield "no resource changes"
    if report["pending"]:
        yield ""
        yield "due already, without the change:"
        yield from (f"   {step['step']}" for step in report["pending"][:_SHOWN])
        if len(report["pending"]) > _SHOWN:
            yield f"   and {len(report['pending']) - _SHOWN} more steps"
    yield from _headed("warnings:", report["warnings"])
    yield ""
    if report["steps"]:
        yield "steps, in their order:"
        width = len(str(len(report["steps"])))
        for step in report["steps"][:_STEPS_SHOWN]:
            number = str(step["number"]).rjust(width)
            yield f"  {number}. {_clock(step['atSeconds'])}  {_described(step)}"
        if len(report["steps"]) > _STEPS_SHOWN:
            yield f"  and {len(report['steps']) - _STEPS_SHOWN} more (-o json has them)"
    elif not report["effects"]:
        yield "nothing is to be done"
    if report["effects"]:
        if report["steps"]:
            yield ""
        yield "of Users, ConsumerGroups and Pipelines, meanwhile:"
        for effect in report["effects"]:
            yield from (f"   {effect['resource']}: {step}" for step in effect["steps"])
    yield ""
    yield from _summary(report)
    partitions = report["partitions"]
    for name, label in (
        ("atMinIsr", "partitions that stand at min.insync.replicas for a time"),
        ("underMinIsr", "partitions that fall below min.insync.replicas"),
        ("offline", "partitions that go offline"),
    ):
        yield f"{label}: {_by_topic(partitions[name])}"
    yield from _headed("clients that notice:", [_client(each) for each in report["clients"]])
    if not report["completes"]:
        yield from _headed("it does not complete; it waits for:", report["waiting"])
    if "loss" in report:
        yield ""
        yield from _loss_lines(report["loss"])
    yield from _headed("assumptions:", report["assumptions"])
    yield from _headed("notes:", report["notes"])


def _summary(report: Object) -> Iterator[str]:
    brokers, servers = report["restarts"]["brokers"], report["restarts"]["zooKeeperServers"]
    ids = ", ".join(str(each["broker"]) for each in brokers)
    yield f"restarts: {f'brokers {ids}' if brokers else 'no broker'}" + (
        f"; ZooKeeper servers {', '.join(servers)}" if servers else ""
    )
    yield f"bytes to move: {size_text(report['bytesToMove'])}"
    yield f"time: about {duration_text(report['seconds'])}"


def _client(client: Object) -> str:
    why = "; ".join(client["why"])
    if "group" in client:
        return f"group {client['group']} ({_listed(client['members'])}): {why}"
    if "principal" in client:
        return f"clients of {client['principal']}: {why}"
    count = client["connections"]
    return f"{count} connection{'s' * (count != 1)} to listener {client['listener']}: {why}"


def _loss_lines(loss: Object) -> Iterator[str]:
    after = loss["afterStep"]
    when = f"after step {after['number']}, {after['step']}" if after else "before the first step"
    yield f"if broker {loss['broker']} is lost for good at the worst moment ({when}):"
    yield f"   below min.insync.replicas: {_by_topic([{'partition': each} for each in loss['underMinIsr']])}"
    yield f"   offline: {_by_topic([{'partition': each} for each in loss['offline']])}"
    if loss["waits"]:
        yield "   the operator waits:"
        yield from (f"      {reason}" for reason in loss["waiting"])
    else:
        yield "   the operator completes the change"
    if loss["stepsAfter"]:
        yield "   steps after the loss:"
        yield from (f"      {_described(step)}" for step in loss["stepsAfter"][:_SHOWN])
        if len(loss["stepsAfter"]) > _SHOWN:
            yield f"      and {len(loss['stepsAfter']) - _SHOWN} more"


def _described(step: Object) -> str:
    restart = _STOP.match(step["step"])
    if restart:
        return f"restart broker {restart[1]}: {restart[2]}"
    resource = "" if step["resource"].startswith("BrokerCluster/") else f" ({step['resource']})"
    return f"{step['step']}{resource}"


def _headed(head: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield head
        yield from (f"   {line}" for line in lines)


def _by_topic(found: Sequence[Object]) -> str:
    """`orders 0, 1, 2 (from step 4); clicks 0 (from step 7)`; of many partitions, their number."""
    numbers: dict[str, list[int]] = {}
    begins: dict[str, int] = {}
    for each in found:
        topic, _, number = each["partition"].rpartition("-")
        numbers.setdefault(topic, []).append(int(number))
        if "step" in each:
            begins[topic] = min(each["step"], begins.get(topic, each["step"]))
    parts = [
        f"{topic} "
        + (", ".join(map(str, sorted(of))) if len(of) <= _SHOWN else f"({len(of)} partitions)")
        + (f", from step {begins[topic]}" if topic in begins else "")
        for topic, of in sorted(numbers.items())
    ]
    return (
        "; ".join(parts[:_SHOWN]) + (f"; {len(parts) - _SHOWN} more topics" * (len(parts) > _SHOWN)) or "none"
    )


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _clock(seconds: int) -> str:
    return f"{seconds // 60:>3}:{seconds % 60:02}"


def size_text(count: int) -> str:
    """1500000 -> 1.5 MB"""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def duration_text(seconds: int) -> str:
    """5400 -> 1h30m"""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def broker_of(text: str | None) -> int | None:
    """The id in `broker-2`, `demo-brokers-2` or `2`. Raises ClickException."""
    if text is None:
        return None
    number = text.rpartition("-")[2]
    if not number.isdigit():
        raise click.ClickException(f"--fail: {text!r} is no broker: give its id, such as 2 or broker-2")
    return int(number)


def timing_of(
    situation_brokers: Sequence[tuple[int | None, int | None]],
    throttle: int | None,
    assumed_start_ms: int = 20_000,
) -> tuple[Timing, list[str]]:
    """The timing of a rehearsal, and what it stands on. `situation_brokers`: (started, ready since) of each
    running broker, in ms; `throttle`: bytes per second and broker."""
    lasted = sorted(
        ready - started
        for started, ready in situation_brokers
        if started is not None and ready is not None and 0 < ready - started < _LONGEST_START_MS
    )
    start_ms = lasted[len(lasted) // 2] if lasted else assumed_start_ms
    rate = throttle or _BYTES_PER_S
    timing = Timing(start_ms, _STOP_MS, _CATCH_UP_MS, _MOVE_MS, _SERVER_MS, float(rate))
    source = f"measured: the last starts of {len(lasted)} brokers" if lasted else "assumed"
    rated = "spec.rebalance.replicationThrottle" if throttle else "assumed, without a throttle"
    return timing, [
        f"a broker starts in {duration_text(round(start_ms / 1000))} ({source})",
        f"it stops in {_STOP_MS // 1000}s, and its replicas are in sync {_CATCH_UP_MS // 1000}s after its "
        "start (assumed)",
        f"a ZooKeeper server restarts in {_SERVER_MS // 1000}s (assumed)",
        f"a broker receives {size_text(rate)} per second of replicas that move ({rated})",
    ]


_STOP_MS: Final = 5_000
_CATCH_UP_MS: Final = 10_000
_MOVE_MS: Final = 2_000
_SERVER_MS: Final = 20_000
_BYTES_PER_S: Final = 50_000_000
_LONGEST_START_MS: Final = 30 * 60_000
