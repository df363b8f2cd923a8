"""What a change does to Users, ConsumerGroups and Pipelines, and which clients notice it.

Pure; called by `kubectl ottla plan` and `ottla up --plan`. Their steps need Secrets, offsets and drivers,
which a rehearsal does not have. They follow from the resources before and after the change: the operator
keeps Kafka as the specs say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ottla.security.acls import AclBinding, PatternType, Permission
from ottla_operator.planning.groups import pending
from ottla_operator.planning.pipeline_config import DriverLaunch, LaunchRefused, launch_of
from ottla_operator.resources import AnyResource, BrokerCluster, ConsumerGroup, Pipeline, User
from ottla_operator.resources.group import OffsetReset

R = TypeVar("R", User, ConsumerGroup, Pipeline)

_WAITS = {
    "Wait": "the reset waits until they have left",
    "Fail": "the reset fails while it has members",
    "Live": "its members are removed, join again and read from the new offsets",
}


@dataclass(frozen=True, slots=True)
class Effect:
    """What the operator does for one resource."""

    resource: str
    steps: tuple[str, ...] = ()
    principal: str = ""
    """The clients that notice; empty: none, or those of a group."""
    group: str = ""
    """The group whose members notice, if it has any."""
    why: tuple[str, ...] = ()


def effects_of(
    before: Sequence[AnyResource],
    after: Sequence[AnyResource],
    bootstrap_of: Callable[[BrokerCluster], str],
) -> list[Effect]:
    """The effects in the order of the resources. `bootstrap_of`: the bootstrap servers of a cluster."""
    old = {each.key: each for each in before}
    found = []
    for new in after:
        was = old.get(new.key)
        if isinstance(new, User):
            effect = _of_user(_same(User, was), new)
        elif isinstance(new, ConsumerGroup):
            effect = _of_group(_same(ConsumerGroup, was), new)
        elif isinstance(new, Pipeline):
            pipeline = _same(Pipeline, was)
            then = _launch(pipeline, before, bootstrap_of) if pipeline is not None else None
            effect = _of_pipeline(pipeline, new, then, _launch(new, after, bootstrap_of))
        else:
            continue
        if effect.steps or effect.why:
            found.append(effect)
    return found


def _same(kind: type[R], resource: AnyResource | None) -> R | None:
    return resource if isinstance(resource, kind) else None


# ---- Users


def _of_user(old: User | None, new: User) -> Effect:
    if new.metadata.deleting:
        return Effect(
            new.key,
            ("delete its credentials and its ACLs",),
            new.principal,
            why=("lose their credentials and ACLs",),
        )
    before, after = old.bindings() if old is not None else frozenset(), new.bindings()
    added, removed = after - before, before - after
    steps = [
        *_credentials(old, new),
        *(f"add ACL: {text}" for text in acl_texts(added)),
        *(f"remove ACL: {text}" for text in acl_texts(removed)),
    ]
    why: list[str] = []
    if old is not None:
        why += _lost_credentials(old, new)
        lost = [each for each in removed if each.entry.permission is Permission.ALLOW]
        denied = [each for each in added if each.entry.permission is Permission.DENY]
        why += [f"lose: {text}" for text in acl_texts(lost)]
        why += [f"get: {text}" for text in acl_texts(denied)]
    principal = (old or new).principal
    return Effect(new.key, tuple(steps), principal if why else "", why=tuple(why))


_CREDENTIALS: Mapping[str | None, str] = {
    "scram-sha-512": "password",
    "tls": "certificate",
    None: "",
}


def _credentials(old: User | None, new: User) -> Iterator[str]:
    was = _CREDENTIALS.get(old.authentication_type, "") if old is not None else ""
    now = _CREDENTIALS.get(new.authentication_type, "")
    source = new.password_source
    if was and was != now:
        yield f"delete its {was}"
    if now and was != now:
        given = f", from Secret {source.name}" if source is not None else ""
        yield f"make its {now} in Secret {new.secret_name}{given}"
    elif now and old is not None and old.password_source != source and source is not None:
        yield f"set its password from Secret {source.name}"


def _lost_credentials(old: User, new: User) -> Iterator[str]:
    was, now = _CREDENTIALS.get(old.authentication_type, ""), _CREDENTIALS.get(new.authentication_type, "")
    if was and was != now:
        needed = f"the {now} in Secret {new.secret_name}" if now else "other credentials"
        yield f"cannot connect again with their {was}: they need {needed}"
    elif new.password_source not in (None, old.password_source):
        yield f"cannot connect again with the former password: the new one is in Secret {new.secret_name}"


def acl_texts(bindings: Sequence[AclBinding] | frozenset[AclBinding]) -> list[str]:
    """`Allow Read, Describe on topic orders*, from 10.0.0.1`: one text for the operations of each pattern."""
    operations: dict[tuple[str, str, str], list[str]] = {}
    for (kind, name, pattern), entry in sorted(bindings):
        resource = f"{kind.label.lower()} {name}{'*' * (pattern is PatternType.PREFIXED)}"
        host = "" if entry.host == "*" else f", from {entry.host}"
        operations.setdefault((entry.permission.label, resource, host), []).append(entry.operation.label)
    return [
        f"{permission} {', '.join(names)} on {resource}{host}"
        for (permission, resource, host), names in operations.items()
    ]


# ---- ConsumerGroups


def _of_group(old: ConsumerGroup | None, new: ConsumerGroup) -> Effect:
    group = new.group_id
    if new.metadata.deleting:
        if not new.deletes_in_kafka:
            return Effect(new.key)
        why = ("its offsets are deleted when all its members have left",)
        return Effect(new.key, (f"delete the offsets of group {group}",), group=group, why=why)
    steps = [] if old is not None else [f"observe group {group}"]
    reset = pending(new)
    if reset is None or (old is not None and pending(old) == reset):
        return Effect(new.key, tuple(steps))
    topics = ", ".join(reset.topics)
    if reset.dry_run:
        return Effect(new.key, (*steps, f"compute the offsets of {topics} for {_to(reset)}"))
    steps.append(f"reset the offsets of group {group} on {topics} to {_to(reset)}")
    return Effect(new.key, tuple(steps), group=group, why=(_WAITS[reset.when_active],))


def _to(reset: OffsetReset) -> str:
    return reset.to if reset.value is None else f"{reset.to} {reset.value}"


# ---- Pipelines


def _launch(
    pipeline: Pipeline, resources: Sequence[AnyResource], bootstrap_of: Callable[[BrokerCluster], str]
) -> DriverLaunch | LaunchRefused:
    cluster = next(each for each in resources if isinstance(each, BrokerCluster))
    users = {each.metadata.name: each for each in resources if isinstance(each, User)}
    return launch_of(pipeline, cluster, bootstrap_of(cluster), users, {})


def _of_pipeline(
    old: Pipeline | None,
    new: Pipeline,
    then: DriverLaunch | LaunchRefused | None,
    now: DriverLaunch | LaunchRefused,
) -> Effect:
    ran = old is not None and not old.spec.suspend
    if new.metadata.deleting or new.spec.suspend:
        stops = "stop the driver when its batch has ended"
        return Effect(new.key, (stops,) if ran else ())
    if isinstance(now, LaunchRefused):
        if isinstance(then, LaunchRefused) and ran:
            return Effect(new.key)
        waits = "the running driver goes on; it does not start again" if ran else "the driver does not start"
        return Effect(new.key, (f"{waits}: {now.message}",))
    if not ran:
        return Effect(new.key, (f"start the driver of job {new.spec.job}",))
    if isinstance(then, DriverLaunch) and then.revision == now.revision:
        return Effect(new.key)
    assert old is not None, "a pipeline that ran was there before"
    what = "its spec" if old.spec != new.spec else "what it connects with"
    again = f"stop the driver when its batch has ended, and start it again: {what} has changed"
    return Effect(new.key, (again,))
