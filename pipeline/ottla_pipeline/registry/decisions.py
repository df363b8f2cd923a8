"""Decisions of writes: from the state and a request to the records to append, and the response.

Called by `store` with the state at the end of the log, between the fencing and the commit. It is called
again if another instance wrote in between, and when a schema check that it needs (PendingChecks) is done.
Pure: nothing changes until the records are in the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, NamedTuple

from ottla.client.registry import Reference
from ottla_pipeline.registry import errors
from ottla_pipeline.registry.records import (
    CONTEXT_PREFIX,
    KIND_CONFIG,
    KIND_DELETE_SUBJECT,
    KIND_MODE,
    KIND_NOOP,
    KIND_SCHEMA,
    ConfigValue,
    DeleteSubjectValue,
    Key,
    Record,
    SchemaValue,
    context_of,
    dump,
    schema_record,
)
from ottla_pipeline.registry.schemas import Canonical, DecisionChecks
from ottla_pipeline.registry.state import State

MODES: Final = ("READWRITE", "READONLY", "IMPORT")
RESERVED_SUBJECTS: Final = ("__GLOBAL", "__EMPTY")
ID_MAX: Final = 2**31 - 1


class Decision(NamedTuple):
    """`records` are appended to the log atomically; without records there is nothing to do."""

    answer: Any
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema as requested. `id` and `version` are set in mode IMPORT only."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None
    id: int | None = None
    version: int | None = None

    def entry(self, subject: str, version: int, schema_id: int, parsed: Canonical) -> SchemaValue:
        return SchemaValue(
            subject,
            version,
            schema_id,
            parsed.type,
            parsed.text,
            self.references,
            self.metadata,
            self.rule_set,
        )


def check_subject(subject: str, *, scope: bool = False) -> None:
    """Raises Refused for an invalid subject name. With `scope` a context alone is valid, too."""
    if not subject or any(ord(sign) < 32 or ord(sign) == 127 for sign in subject):
        raise errors.invalid_subject(subject, "must have a name without control characters")
    if subject in RESERVED_SUBJECTS:
        raise errors.invalid_subject(subject, f"reserved, as are {', '.join(RESERVED_SUBJECTS)}")
    context, colon, name = subject[1:].partition(":")
    if subject.startswith(CONTEXT_PREFIX) and (context == "." or not colon or not (name or scope)):
        raise errors.invalid_subject(subject, f"a context's is written {CONTEXT_PREFIX}CONTEXT:SUBJECT")


def find(
    state: State,
    schemas: DecisionChecks,
    subject: str,
    wanted: SchemaRequest,
    *,
    deleted: bool = False,
    normalize: bool = False,
) -> SchemaValue | None:
    """The version of a subject that equals this schema; the newest, if there are several."""
    parsed = _parse(state, schemas, subject, wanted, normalize)
    return _find(state, schemas, subject, wanted, parsed, deleted=deleted)


def check(
    state: State,
    schemas: DecisionChecks,
    subject: str,
    wanted: SchemaRequest,
    *,
    version: int | None = None,
    normalize: bool = False,
) -> list[str]:
    """The incompatibilities of a schema with the versions of a subject, or with one of them. Raises
    Refused."""
    if version is None:
        earlier = state.versions(subject)
    else:
        found = state.latest(subject) if version == -1 else state.entry(subject, version)
        if found is None and version != -1:
            raise errors.version_not_found(version)
        earlier = [] if found is None else [found]
    parsed = _parse(state, schemas, subject, wanted, normalize)
    return _problems(state, schemas, subject, wanted, parsed, earlier)


def register(
    state: State, schemas: DecisionChecks, subject: str, wanted: SchemaRequest, *, normalize: bool = False
) -> Decision:
    """Registers a schema; the answer is a SchemaValue. A schema that the subject has changes nothing."""
    check_subject(subject)
    mode = state.mode(subject)
    if mode.startswith("READONLY"):
        raise errors.not_permitted(f"Subject '{subject}' is in mode {mode}.")
    if (wanted.id is None) != (mode == "READWRITE"):
        must = "must have an id" if wanted.id is None else "must not have an id"
        raise errors.not_permitted(f"Subject '{subject}' is in mode {mode}: a schema {must}.")
    parsed = _parse(state, schemas, subject, wanted, normalize)
    as_sent = wanted
    wanted = _with_defaults(state, subject, wanted)
    if wanted.version is None:
        known = _find(state, schemas, subject, as_sent, parsed, deleted=False)
        if known is not None and (known.metadata, known.rule_set) != (wanted.metadata, wanted.rule_set):
            known = None
        known = known or _find(state, schemas, subject, wanted, parsed, deleted=False)
        if known is not None and wanted.id in (None, known.id):
            return Decision(known)
    if mode != "IMPORT":
        found = _problems(state, schemas, subject, wanted, parsed, state.versions(subject))
        if found:
            raise errors.incompatible(subject, found)
    every = state.versions(subject, deleted=True)
    version = next_version = every[-1].version + 1 if every else 1
    if wanted.version is not None:
        if mode != "IMPORT" and wanted.version != next_version:
            raise errors.invalid_schema(f"version {wanted.version}: the next one is {next_version}")
        version = wanted.version
    entry = wanted.entry(subject, version, 0, parsed)
    entry = wanted.entry(subject, version, _id_for(state, entry, wanted.id), parsed)
    # A deleted schema that is registered again has one version, not two: the old version is removed.
    gone = tuple(
        Record(Key(KIND_SCHEMA, subject, old.version), None)
        for old in every
        if old.deleted
        and old.id == entry.id
        and old.version < version
        and not state.referrers(subject, old.version, deleted=True)
    )
    return Decision(entry, (schema_record(entry), *gone))


def _with_defaults(state: State, subject: str, wanted: SchemaRequest) -> SchemaRequest:
    """The schema with the metadata and rules of the configuration, and with those of the previous version
    where it has none."""
    last = state.latest(subject)

    def merged(own: str | None, before: str | None, kind: str, merge: Callable[..., Any]) -> str | None:
        base = own if own is not None else before
        parts = (
            state.setting(subject, f"default{kind}"),
            None if base is None else json.loads(base),
            state.setting(subject, f"override{kind}"),
        )
        given = [part for part in parts if part]
        return dump(reduce(merge, given)) if len(given) > 1 or (given and base is None) else base

    return replace(
        wanted,
        metadata=merged(wanted.metadata, last.metadata if last else None, "Metadata", _merged_metadata),
        rule_set=merged(wanted.rule_set, last.rule_set if last else None, "RuleSet", _merged_rules),
    )


def _merged_metadata(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Tags and properties of both; those of `second` take precedence."""
    found: dict[str, Any] = {}
    for name in ("tags", "properties"):
        both = {**(first.get(name) or {}), **(second.get(name) or {})}
        found |= {name: both} if both else {}
    sensitive = sorted({*(first.get("sensitive") or ()), *(second.get("sensitive") or ())})
    return found | ({"sensitive": sensitive} if sensitive else {})


def _merged_rules(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The rules of both; those of `second` come last and replace rules of the same name."""
    found = {**first, **second}
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        later = second.get(kind) or []
        names = {rule.get("name") for rule in later}
        both = [*(rule for rule in first.get(kind) or [] if rule.get("name") not in names), *later]
        found |= {kind: both} if both else {}
    return found


def _problems(
    state: State,
    schemas: DecisionChecks,
    subject: str,
    wanted: SchemaRequest,
    parsed: Canonical,
    earlier: Sequence[SchemaValue],
) -> list[str]:
    """The incompatibilities with earlier versions; only versions of the same compatibilityGroup count."""
    group = state.setting(subject, "compatibilityGroup")
    if group is not None:
        own = _property(wanted.metadata, group)
        earlier = [entry for entry in earlier if _property(entry.metadata, group) == own]
    lenient = state.setting(subject, "compatibilityPolicy") == "LENIENT"
    return schemas.problems(state, state.level(subject), parsed, earlier, lenient=lenient)


def _property(metadata: str | None, name: str) -> Any:
    found = None if metadata is None else json.loads(metadata).get("properties")
    return found.get(name) if isinstance(found, dict) else None


def delete_version(state: State, subject: str, version: int, *, permanent: bool) -> Decision:
    """The answer is the version's number; -1 stands for the latest."""
    _check_writable(state, subject)
    if not state.versions(subject, deleted=True):
        raise errors.subject_not_found(subject)
    entry = state.latest(subject) if version == -1 else state.entry(subject, version, deleted=True)
    if entry is None:
        raise errors.version_not_found("latest" if version == -1 else version)
    if entry.deleted and not permanent:
        raise errors.version_soft_deleted(subject, entry.version)
    if not entry.deleted and permanent:
        raise errors.version_not_soft_deleted(subject, entry.version)
    if state.referrers(subject, entry.version, deleted=permanent):
        raise errors.referenced(subject, entry.version)
    if not permanent:
        return Decision(entry.version, (schema_record(entry.as_deleted()),))
    last = len(state.versions(subject, deleted=True)) == 1
    return Decision(entry.version, tuple(_removal(state, [entry], subject if last else None)))


def delete_subject(state: State, subject: str, *, permanent: bool) -> Decision:
    """The answer is the list of deleted versions."""
    _check_writable(state, subject)
    every = state.versions(subject, deleted=True)
    if not every:
        raise errors.subject_not_found(subject)
    live = state.versions(subject)
    if not permanent and not live:
        raise errors.subject_soft_deleted(subject)
    if permanent and live:
        raise errors.subject_not_soft_deleted(subject)
    going = every if permanent else live
    for entry in going:
        others = state.referrers(subject, entry.version, deleted=permanent)
        if any(other.subject != subject for other in others):
            raise errors.referenced(subject, entry.version)
    answer = [entry.version for entry in going]
    if permanent:
        return Decision(answer, tuple(_removal(state, going, subject)))
    # Up to the highest version of all: compaction removes the earlier record of this key.
    return Decision(
        answer, (Record(Key(KIND_DELETE_SUBJECT, subject), DeleteSubjectValue(every[-1].version)),)
    )


def set_config(state: State, subject: str | None, changes: dict[str, Any]) -> Decision:
    """`changes` are the requested settings; None resets one."""
    _check_scope(state, subject)
    before = state.configs.get(subject)
    settings = {**(json.loads(before.settings) if before else {}), **changes}
    settings = {name: value for name, value in settings.items() if value is not None}
    level = ConfigValue(dump(settings))
    return Decision(settings, (Record(Key(KIND_CONFIG, subject), level),))


def delete_config(state: State, subject: str | None) -> Decision:
    """The answer is the previous configuration."""
    _check_scope(state, subject)
    before = state.configs.get(subject)
    if before is None:
        if subject is not None:
            raise errors.subject_not_found(subject)
        return Decision({"compatibilityLevel": state.level(None)})
    return Decision(json.loads(before.settings), (Record(Key(KIND_CONFIG, subject), None),))


def set_mode(state: State, subject: str | None, mode: str, *, force: bool = False) -> Decision:
    """IMPORT requires a scope without schemas, unless forced; it removes soft-deleted versions."""
    if subject is not None:
        check_subject(subject, scope=True)
    records: list[Record] = []
    if mode == "IMPORT" and state.mode(subject) != "IMPORT" and not force:
        names = list(state.subjects) if subject is None else state.within(subject)
        rest: list[SchemaValue] = []
        for name in names:
            if state.versions(name):
                raise errors.not_permitted(f"Subject '{name}' has schemas: mode IMPORT needs force=true.")
            rest += state.versions(name, deleted=True)
        going = {(entry.subject, entry.version) for entry in rest}
        for entry in rest:
            for other in state.referrers(entry.subject, entry.version, deleted=True):
                if (other.subject, other.version) not in going:
                    raise errors.referenced(entry.subject, entry.version)
        records += _removal(state, rest, None)
    return Decision(mode, (*records, Record(Key(KIND_MODE, subject), mode)))


def delete_mode(state: State, subject: str | None) -> Decision:
    """The answer is the previous mode."""
    before = state.modes.get(subject)
    if before is None:
        if subject is not None:
            raise errors.subject_not_found(subject)
        return Decision(state.mode(None))
    return Decision(before, (Record(Key(KIND_MODE, subject), None),))


def _parse(
    state: State, schemas: DecisionChecks, subject: str, wanted: SchemaRequest, normalize: bool
) -> Canonical:
    if not wanted.text.strip():
        raise errors.invalid_schema("it is empty")
    normalize = normalize or state.normalizes(subject)
    return schemas.parse(
        state,
        wanted.type,
        wanted.text,
        wanted.references,
        context=context_of(subject),
        normalize=normalize,
    )


def _find(
    state: State,
    schemas: DecisionChecks,
    subject: str,
    wanted: SchemaRequest,
    parsed: Canonical,
    *,
    deleted: bool,
) -> SchemaValue | None:
    probe = wanted.entry(subject, 1, 0, parsed)
    versions = [
        entry
        for entry in reversed(state.versions(subject, deleted=deleted))
        if (entry.type, entry.references) == (probe.type, probe.references)
        and (wanted.metadata is None or entry.metadata == wanted.metadata)
        and (wanted.rule_set is None or entry.rule_set == wanted.rule_set)
    ]
    for entry in versions:
        if entry.text == probe.text:
            return entry
    others = versions
    # Others wrote it in another form, perhaps.
    texts = schemas.canonical(state, others)
    return next((entry for entry, text in zip(others, texts, strict=True) if text == parsed.text), None)


def _id_for(state: State, entry: SchemaValue, wanted: int | None) -> int:
    """The id of this schema under any subject; else the requested id; else the next one."""
    same, highest = state.same(entry), state.highest_id(entry.context)
    if wanted is None:
        if not same and highest >= ID_MAX:
            raise errors.Refused(50001, "no id is left")
        return same[0].id if same else highest + 1
    if not 0 < wanted <= ID_MAX:
        raise errors.invalid_schema(f"id {wanted}: must be from 1 to {ID_MAX}")
    for other in state.under_id(wanted, entry.context):
        if other.identity != entry.identity:
            raise errors.not_permitted(f"Id {wanted} belongs to another schema.")
    return wanted


def _removal(state: State, entries: list[SchemaValue], emptied: str | None) -> Iterator[Record]:
    """Tombstones, newest version first; the settings of a subject without versions are removed with it.

    The highest id is stored before the versions that show it are removed.
    """
    if entries:
        yield Record(Key(KIND_NOOP), state.highest_ids())
    for entry in reversed(entries):
        yield Record(Key(KIND_SCHEMA, entry.subject, entry.version), None)
    if emptied is not None:
        if emptied in state.modes:
            yield Record(Key(KIND_MODE, emptied), None)
        if emptied in state.configs:
            yield Record(Key(KIND_CONFIG, emptied), None)


def _check_writable(state: State, subject: str | None) -> None:
    mode = state.mode(subject)
    if mode.startswith("READONLY"):
        what = "The registry" if subject is None else f"Subject '{subject}'"
        raise errors.not_permitted(f"{what} is in mode {mode}.")


def _check_scope(state: State, subject: str | None) -> None:
    if subject is not None:
        check_subject(subject, scope=True)
    _check_writable(state, subject)
