"""The registry's state and decisions: what a write does, and that compaction takes nothing away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.registry import Reference
from ottla_pipeline.registry import decisions
from ottla_pipeline.registry.checks import Checker
from ottla_pipeline.registry.decisions import Decision, SchemaRequest
from ottla_pipeline.registry.errors import Refused
from ottla_pipeline.registry.records import (
    Record,
    UnreadableRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from ottla_pipeline.registry.schemas import DecisionChecks, PendingChecks, ResultCache
from ottla_pipeline.registry.state import State

Encoded = tuple[bytes, bytes | None]


def record(*fields: str, name: str = "R") -> str:
    """A record schema; a field with a question mark has a default."""
    described: list[dict[str, Any]] = [
        {"name": each.rstrip("?"), "type": "int", **({"default": 0} if each.endswith("?") else {})}
        for each in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": described})


def fold(log: list[Encoded]) -> State:
    state = State()
    for key_bytes, value_bytes in log:
        key = decode_key(key_bytes)
        state.apply(key, decode_value(key, value_bytes))
    return state


class Desk:
    """A registry without Kafka: decides, and folds what it has decided after a way through bytes."""

    def __init__(self) -> None:
        self.state = State()
        self.schemas = DecisionChecks(ResultCache())
        self.checker = Checker()
        self.log: list[Encoded] = []

    def decide(self, decide: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """As the store does it, with the checks in this process."""
        while True:
            try:
                return decide(self.state, self.schemas, *arguments, **options)
            except PendingChecks as pending:
                for job in pending.jobs:
                    self.schemas.learn(job, self.checker.perform(job))

    def do(self, decision: Decision) -> Any:
        for each in decision.records:
            self.log.append((encode_key(each.key), encode_value(each.key, each.value)))
            self.state.apply(*self._through_bytes(each))
        return decision.answer

    def _through_bytes(self, each: Record) -> Any:
        key = decode_key(encode_key(each.key))
        assert key == each.key
        value = decode_value(key, encode_value(each.key, each.value))
        assert value == each.value
        return key, value

    def register(self, subject: str, wanted: SchemaRequest | str, **options: bool) -> int:
        wanted = SchemaRequest(wanted) if isinstance(wanted, str) else wanted
        entry = self.do(self.decide(decisions.register, subject, wanted, **options))
        return int(entry.id)

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> Any:
        if version is None:
            return self.do(decisions.delete_subject(self.state, subject, permanent=permanent))
        return self.do(decisions.delete_version(self.state, subject, version, permanent=permanent))

    def level(self, subject: str | None, level: str) -> None:
        self.do(decisions.set_config(self.state, subject, {"compatibilityLevel": level}))

    def mode(self, subject: str | None, mode: str, **options: bool) -> None:
        self.do(decisions.set_mode(self.state, subject, mode, **options))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def refused(code: int, do: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as raised:
        do()
    assert raised.value.code == code, raised.value
    return str(raised.value)


# -- Registering --


def test_the_same_schema_has_one_id_under_all_subjects(desk: Desk) -> None:
    assert desk.register("a", record("x")) == 1
    assert desk.register("b", record("y")) == 2
    assert (
        desk.register(
            "b", '{"name": "R", "fields": [{"type": {"type": "int"}, "name": "y"}], "type": "record"}'
        )
        == 2
    )
    assert desk.register("c", record("x")) == 1
    assert [entry.subject for entry in desk.state.under_id(1)] == ["a", "c"]
    assert len(desk.state.versions("b")) == 1


def test_an_avro_and_a_json_schema_with_one_text_are_two(desk: Desk) -> None:
    text = '{"type":"string"}'
    assert desk.register("a", SchemaRequest(text, "JSON")) != desk.register("b", SchemaRequest(text, "AVRO"))


def test_a_schema_that_is_not_compatible_is_refused_with_reasons(desk: Desk) -> None:
    desk.register("s", record("x"))
    message = refused(409, lambda: desk.register("s", record("x", "y")))
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in message
    assert "/fields/1" in message
    assert desk.register("s", record("x", "y?")) == 2


@pytest.mark.parametrize(
    ("level", "taken"),
    [
        ("NONE", [True, True, True]),
        ("BACKWARD", [True, False, True]),
        ("FORWARD", [False, True, True]),
        ("FULL", [False, False, True]),
    ],
)
def test_levels_decide_what_may_follow(desk: Desk, level: str, taken: list[bool]) -> None:
    """A field less, a field more without default, a field more with one."""
    for number, fields in enumerate([("x",), ("x", "y", "z"), ("x", "y", "z?")]):
        subject = f"s{number}"
        desk.level(subject, "NONE")
        desk.register(subject, record("x", "y"))
        desk.level(subject, level)
        found = desk.decide(decisions.check, subject, SchemaRequest(record(*fields)))
        assert (not found) == taken[number], found


def test_transitive_levels_hold_a_schema_against_all_versions(desk: Desk) -> None:
    desk.level("s", "NONE")
    desk.register("s", record("x"))
    desk.register("s", record("x", "y?"))
    newest = SchemaRequest(record("x", "y"))
    desk.level("s", "BACKWARD")
    assert desk.decide(decisions.check, "s", newest) == []
    desk.level("s", "BACKWARD_TRANSITIVE")
    found = desk.decide(decisions.check, "s", newest)
    assert "{oldSchemaVersion: 1}" in found
    assert desk.decide(decisions.check, "s", newest, version=-1) == []


def test_a_global_level_holds_where_a_subject_has_none(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.level(None, "NONE")
    assert desk.register("s", record("q")) == 2
    desk.level("s", "FULL")
    refused(409, lambda: desk.register("s", record("p")))
    desk.do(decisions.delete_config(desk.state, "s"))
    assert desk.register("s", record("p")) == 3


def test_a_text_that_is_no_schema_is_refused(desk: Desk) -> None:
    for wanted in (
        SchemaRequest(""),
        SchemaRequest("{"),
        SchemaRequest('"nothing"'),
        SchemaRequest('{"type":"record","name":"R","fields":[{"name":"a","type":"S"}]}'),
        SchemaRequest('{"type":"nothing"}', "JSON"),
        SchemaRequest("3", "JSON"),
        SchemaRequest('{"maximum":1e999}', "JSON"),
        SchemaRequest("syntax = 'proto4';", "PROTOBUF"),
        SchemaRequest(record("x"), references=(Reference("S", "s", 1),)),
    ):
        refused(42201, lambda wanted=wanted: desk.register("s", wanted))  # type: ignore[misc]
    assert desk.log == []


@pytest.mark.parametrize("subject", ["", "__GLOBAL", "__EMPTY", ":.context", ":.context:", ":.:s", "a\nb"])
def test_names_that_subjects_may_not_have(desk: Desk, subject: str) -> None:
    refused(42208, lambda: desk.register(subject, record("x")))


def test_normalize_tells_schemas_apart_by_what_they_mean(desk: Desk) -> None:
    one = '{"type":"record","name":"R","b":1,"a":2,"fields":[]}'
    two = '{"type":"record","name":"R","a":2,"b":1,"fields":[]}'
    assert desk.register("s", one) != desk.register("s", two)
    assert desk.register("n", one, normalize=True) == desk.register("n", two, normalize=True)
    assert desk.register("j", SchemaRequest('{"b":1,"a":2}', "JSON"), normalize=True) == desk.register(
        "j", SchemaRequest('{"a":2,"b":1}', "JSON"), normalize=True
    )


def test_the_normalize_setting_of_a_subject_does_the_same(desk: Desk) -> None:
    desk.do(decisions.set_config(desk.state, "j", {"normalize": True}))
    assert desk.register("j", SchemaRequest('{"b":1,"a":2}', "JSON")) == desk.register(
        "j", SchemaRequest('{"a":2,"b":1}', "JSON")
    )


# -- References --

MONEY = json.dumps({"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]})
ORDER = SchemaRequest(
    json.dumps({"type": "record", "name": "Order", "fields": [{"name": "sum", "type": "shop.Money"}]}),
    references=(Reference("shop.Money", "money", 1),),
)


def test_a_schema_may_use_another_one_and_keeps_it_alive(desk: Desk) -> None:
    desk.register("money", MONEY)
    desk.register("orders", ORDER)
    assert [entry.subject for entry in desk.state.referrers("money", 1)] == ["orders"]
    refused(42206, lambda: desk.delete("money"))
    refused(42206, lambda: desk.delete("money", 1))
    desk.delete("orders")
    desk.delete("money")
    refused(42206, lambda: desk.delete("money", permanent=True))
    desk.delete("orders", permanent=True)
    desk.delete("money", permanent=True)
    assert desk.state.subjects == {}


def test_referenced_schemas_take_part_in_compatibility(desk: Desk) -> None:
    desk.level("money", "NONE")
    desk.register("money", MONEY)
    desk.register("money", MONEY.replace("long", "string"))
    desk.register("orders", ORDER)
    changed = SchemaRequest(ORDER.text, references=(Reference("shop.Money", "money", 2),))
    assert "TYPE_MISMATCH" in refused(409, lambda: desk.register("orders", changed))


# -- Deleting --


def test_deleted_softly_a_schema_stays_under_its_id_and_its_version_is_not_used_again(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.register("s", record("x", "y?"))
    assert desk.delete("s", 1) == 1
    refused(40406, lambda: desk.delete("s", 1))
    assert desk.state.entry("s", 1) is None
    assert desk.state.under_id(1)[0].text
    assert desk.delete("s") == [2]
    refused(40404, lambda: desk.delete("s"))
    desk.register("s", record("z"))
    assert [entry.version for entry in desk.state.versions("s")] == [3]


def test_a_deleted_schema_that_comes_again_has_its_id_and_a_new_version(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.register("s", record("x", "y?"))
    desk.delete("s")
    assert desk.register("s", record("x")) == 1
    assert [(entry.version, entry.deleted) for entry in desk.state.versions("s", deleted=True)] == [
        (2, True),
        (3, False),
    ]


def test_only_a_softly_deleted_schema_can_be_deleted_permanently(desk: Desk) -> None:
    desk.register("s", record("x"))
    refused(40405, lambda: desk.delete("s", permanent=True))
    refused(40407, lambda: desk.delete("s", 1, permanent=True))
    refused(40401, lambda: desk.delete("t"))
    refused(40401, lambda: desk.delete("t", 1))
    refused(40402, lambda: desk.delete("s", 9))
    desk.level("s", "NONE")
    desk.mode("s", "READWRITE")
    desk.delete("s", -1)
    desk.delete("s", 1, permanent=True)
    assert (desk.state.subjects, desk.state.configs, desk.state.modes) == ({}, {}, {})


def test_an_id_that_was_deleted_for_good_is_never_given_away_again(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.delete("s")
    desk.delete("s", permanent=True)
    assert fold(desk.log[-2:]).highest_id() == 1
    assert desk.register("s", record("y")) == 2
    assert desk.state.versions("s")[0].version == 1


def test_a_subject_is_deleted_up_to_its_highest_version_though_that_is_deleted_already(desk: Desk) -> None:
    """The second record takes the first one's place in a compacted log."""
    for fields in (("x",), ("x", "y?"), ("x", "z?")):
        desk.register("s", record(*fields))
    desk.delete("s")
    desk.mode("s", "IMPORT", force=True)
    desk.register("s", SchemaRequest(record("x"), id=1, version=1))
    assert desk.delete("s") == [1]
    assert fold(compacted(desk.log, lambda number: False, True)) == desk.state
    assert desk.state.versions("s") == []


# -- Modes --


def test_nothing_is_written_in_mode_readonly(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.mode(None, "READONLY")
    refused(42205, lambda: desk.register("s", record("x", "y?")))
    refused(42205, lambda: desk.delete("s"))
    refused(42205, lambda: desk.level("s", "NONE"))
    desk.mode("s", "READWRITE")
    desk.delete("s")


def test_ids_are_brought_along_in_mode_import_alone(desk: Desk) -> None:
    refused(42205, lambda: desk.register("s", SchemaRequest(record("x"), id=77)))
    desk.register("t", record("t"))
    refused(42205, lambda: desk.mode("t", "IMPORT"))
    desk.mode("t", "IMPORT", force=True)
    desk.mode("s", "IMPORT")
    refused(42205, lambda: desk.register("s", record("x")))
    assert desk.register("s", SchemaRequest(record("x"), id=77, version=5)) == 77
    refused(42205, lambda: desk.register("s", SchemaRequest(record("y"), id=77, version=6)))
    assert desk.register("s", SchemaRequest(record("q", "r"), id=70, version=2)) == 70
    assert [entry.version for entry in desk.state.versions("s")] == [2, 5]
    desk.mode("s", "READWRITE")
    assert desk.register("new", record("n")) == 78


def test_mode_import_removes_what_is_left_of_deleted_subjects(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.delete("s")
    desk.mode("s", "IMPORT")
    assert desk.state.subjects == {}
    assert desk.state.highest_id() == 1


# -- The topic --


def test_keys_are_those_of_confluents(desk: Desk) -> None:
    desk.register("s", record("x"))
    desk.level(None, "FULL")
    desk.mode("s", "READWRITE")
    desk.delete("s")
    assert [key.decode() for key, _ in desk.log] == [
        '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        '{"keytype":"CONFIG","magic":0}',
        '{"keytype":"MODE","subject":"s","magic":0}',
        '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
    ]


def test_a_log_of_confluents_is_taken_over() -> None:
    text = json.dumps(record("x"))
    state = fold(
        [
            (b'{"keytype":"NOOP","magic":0}', None),
            (
                b'{"keytype":"CONFIG","subject":null,"magic":0}',
                b'{"subject":null,"compatibilityLevel":"FULL"}',
            ),
            (
                b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":0}',
                f'{{"subject":"s","version":1,"id":4,"md5":"eA==","schema":{text},"deleted":false}}'.encode(),
            ),
            (b'{"keytype":"MODE","subject":"s","magic":0}', b'{"mode":"READONLY"}'),
            (b'{"keytype":"CONTEXT","tenant":"default","context":"c","magic":0}', b'{"context":"c"}'),
            (
                b'{"keytype":"SCHEMA","subject":":.c:s","version":1,"magic":1}',
                f'{{"subject":":.c:s","version":1,"id":4,"schema":{text}}}'.encode(),
            ),
            (b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', b'{"subject":"s","version":1}'),
            (b'{"keytype":"CLEAR_SUBJECT","subject":"t","magic":0}', b'{"subject":"t"}'),
        ]
    )
    assert (state.level("s"), state.mode("s"), state.highest_id()) == ("FULL", "READONLY", 4)
    assert [(entry.id, entry.deleted) for entry in state.versions("s", deleted=True)] == [(4, True)]
    assert list(state.subjects) == ["s", ":.c:s"]


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\xff",
        b"3",
        b"{}",
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":7}',
        b'{"keytype":"SCHEMA","subject":"s","version":0,"magic":1}',
        b'{"keytype":"SCHEMA","magic":1}',
    ],
)
def test_a_record_that_is_none_of_these_is_told_from_others(data: bytes | None) -> None:
    with pytest.raises(UnreadableRecord):
        decode_key(data)


SUBJECTS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from([record("x"), record("x", "y?"), record("x?"), MONEY, '"string"'])
COMMANDS = st.one_of(
    st.tuples(st.just("register"), SUBJECTS, TEXTS),
    st.tuples(st.just("import"), SUBJECTS, TEXTS, st.integers(1, 9), st.integers(1, 6)),
    st.tuples(st.just("refer"), SUBJECTS, SUBJECTS, st.integers(1, 3)),
    st.tuples(st.just("delete"), SUBJECTS, st.one_of(st.none(), st.integers(1, 4)), st.booleans()),
    st.tuples(st.just("level"), st.one_of(st.none(), SUBJECTS), st.sampled_from(["NONE", "FULL", None])),
    st.tuples(st.just("mode"), st.one_of(st.none(), SUBJECTS), st.sampled_from([*decisions.MODES, None])),
)


def run(desk: Desk, command: tuple[Any, ...]) -> None:
    match command:
        case ("register", subject, text):
            desk.register(subject, text)
        case ("import", subject, text, schema_id, version):
            desk.register(subject, SchemaRequest(text, id=schema_id, version=version))
        case ("refer", subject, other, version):
            desk.register(
                subject, SchemaRequest(ORDER.text, references=(Reference("shop.Money", other, version),))
            )
        case ("delete", subject, version, permanent):
            desk.delete(subject, version, permanent=permanent)
        case ("level", subject, None):
            desk.do(decisions.delete_config(desk.state, subject))
        case ("level", subject, level):
            desk.level(subject, level)
        case ("mode", subject, None):
            desk.do(decisions.delete_mode(desk.state, subject))
        case ("mode", subject, mode):
            desk.mode(subject, mode, force=True)


def compacted(log: list[Encoded], keeps: Callable[[int], bool], tombstones_go: bool) -> list[Encoded]:
    """What a cleaner may leave: the last record of each key, and of the others those that it did not get
    to."""
    last = {key: number for number, (key, _) in enumerate(log)}
    kept: list[Encoded] = []
    for number, (key, value) in enumerate(log):
        if last[key] == number:
            earlier = any(k == key for k, _ in kept)
            if value is not None or earlier or not tombstones_go:
                kept.append((key, value))
        elif keeps(number):
            kept.append((key, value))
    return kept


@settings(max_examples=120, deadline=None)
@given(st.lists(COMMANDS, max_size=40), st.sets(st.integers(0, 80)), st.booleans())
def test_the_state_is_the_same_whatever_compaction_removed(
    commands: list[tuple[Any, ...]], kept: set[int], tombstones_go: bool
) -> None:
    desk = Desk()
    owners: dict[int, Any] = {}
    for command in commands:
        before = set(owners)
        try:
            run(desk, command)
        except Refused:
            continue
        for versions in desk.state.subjects.values():
            for entry in versions.values():
                if command[0] == "register" and entry.id not in before:
                    assert entry.id > max(before, default=0), "an id came again, or out of turn"
                assert owners.setdefault(entry.id, entry.identity) == entry.identity or command[0] == "import"
                owners[entry.id] = entry.identity
    assert fold(desk.log) == desk.state
    assert fold(compacted(desk.log, kept.__contains__, tombstones_go)) == desk.state
