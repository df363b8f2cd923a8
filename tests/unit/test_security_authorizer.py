"""The authorizer's decisions by ACLs: Kafka's rules, case by case."""

from __future__ import annotations

import pytest

from ottla.security import authorizer
from ottla.security.acls import (
    AclBinding,
    AclFilter,
    Entry,
    EntryFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.security.authorizer import AclAuthorizer, allowed_operations
from ottla.security.principals import Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HERE, THERE = "10.0.0.1", "10.0.0.2"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALLOW, DENY = Permission.ALLOW, Permission.DENY
PREFIXED = PatternType.PREFIXED
Op = Operation

AclRow = tuple[ResourcePattern, Entry]


def on(
    name: str,
    operation: Operation,
    permission: Permission = ALLOW,
    who: str = "User:alice",
    host: str = "*",
    *,
    prefixed: bool = False,
    kind: ResourceType = TOPIC,
) -> AclRow:
    pattern_type = PREFIXED if prefixed else PatternType.LITERAL
    return ResourcePattern(kind, name, pattern_type), Entry(who, host, operation, permission)


def made(*rows: AclRow, allow_if_no_acl: bool = False) -> AclAuthorizer:
    made = AclAuthorizer(super_users=frozenset({Principal("User", "root")}), allow_if_no_acl=allow_if_no_acl)
    patterns: dict[ResourcePattern, set[Entry]] = {}
    for pattern, entry in rows:
        patterns.setdefault(pattern, set()).add(entry)
    for pattern, entries in patterns.items():
        made.update(pattern, frozenset(entries))
    return made


@pytest.mark.parametrize(
    ("rows", "operation", "allowed"),
    [
        ([], Op.READ, False),
        ([on("flights", Op.READ)], Op.READ, True),
        ([on("flights", Op.READ)], Op.WRITE, False),
        ([on("flights", Op.READ, who="User:*")], Op.READ, True),
        ([on("flights", Op.READ, who="User:bob")], Op.READ, False),
        ([on("flights", Op.READ, host=HERE)], Op.READ, True),
        ([on("flights", Op.READ, host=THERE)], Op.READ, False),
        ([on("*", Op.READ)], Op.READ, True),
        ([on("fli", Op.READ, prefixed=True)], Op.READ, True),
        ([on("flights", Op.READ, prefixed=True)], Op.READ, True),
        ([on("flights2", Op.READ, prefixed=True)], Op.READ, False),
        ([on("*", Op.READ, prefixed=True)], Op.READ, False),
        ([on("fli", Op.READ)], Op.READ, False),
        ([on("flights", Op.READ, kind=GROUP)], Op.READ, False),
        ([on("flights", Op.ALL)], Op.IDEMPOTENT_WRITE, True),
        ([on("flights", Op.ALL), on("flights", Op.READ, DENY)], Op.READ, False),
        ([on("flights", Op.ALL), on("flights", Op.READ, DENY)], Op.WRITE, True),
        ([on("flights", Op.READ), on("f", Op.ALL, DENY, "User:*", prefixed=True)], Op.READ, False),
        ([on("flights", Op.READ), on("*", Op.READ, DENY, host=THERE)], Op.READ, True),
        *(([on("flights", each)], Op.DESCRIBE, True) for each in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER)),
        ([on("flights", Op.CREATE)], Op.DESCRIBE, False),
        ([on("flights", Op.ALTER_CONFIGS)], Op.DESCRIBE_CONFIGS, True),
        ([on("flights", Op.ALTER_CONFIGS)], Op.DESCRIBE, False),
        # Who may not read may still describe, if anything else lets it: denying implies nothing.
        ([on("flights", Op.WRITE), on("flights", Op.READ, DENY)], Op.DESCRIBE, True),
        ([on("flights", Op.READ), on("flights", Op.DESCRIBE, DENY)], Op.READ, True),
    ],
)
def test_acls_allow_and_deny_operations_on_a_topic(
    rows: list[AclRow], operation: Operation, allowed: bool
) -> None:
    assert made(*rows).allows(ALICE, HERE, operation, TOPIC, "flights") is allowed


def test_super_users_may_do_everything() -> None:
    denied = made(on("*", Op.ALL, DENY, "User:*"))
    root = Principal("User", "root")
    assert denied.allows(root, HERE, Op.DELETE, TOPIC, "flights")
    assert denied.allows_some(root, HERE, Op.WRITE, TOPIC)
    assert not denied.allows(ALICE, HERE, Op.DELETE, TOPIC, "flights")


def test_resources_without_acl_are_open_if_the_setting_says_so() -> None:
    open_house = made(on("flights", Op.READ, who="User:bob"), allow_if_no_acl=True)
    assert open_house.allows(ALICE, HERE, Op.WRITE, TOPIC, "trains")
    assert not open_house.allows(ALICE, HERE, Op.READ, TOPIC, "flights"), "it has ACLs, which are bob's"
    assert open_house.allows_some(ALICE, HERE, Op.WRITE, TOPIC)


def test_a_change_applies_to_the_next_decision() -> None:
    pattern, entry = on("fli", Op.READ, prefixed=True)
    changing = made()
    for _ in range(2):
        assert not changing.allows(ALICE, HERE, Op.READ, TOPIC, "flights")
        changing.update(pattern, frozenset({entry}))
        assert changing.allows(ALICE, HERE, Op.READ, TOPIC, "flights")
        changing.update(pattern, frozenset())
    assert not list(changing.bindings(AclFilter()))


def test_the_cache_of_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "DECISIONS_MAX", 8)
    some = made(on("t1", Op.READ))
    for n in range(100):
        assert some.allows(ALICE, HERE, Op.READ, TOPIC, f"t{n}") is (n == 1)
        assert len(some._decisions) <= 8


@pytest.mark.parametrize(
    ("rows", "allowed"),
    [
        ([], False),
        ([on("flights", Op.WRITE)], True),
        ([on("flights", Op.ALL)], True),
        ([on("f", Op.WRITE, prefixed=True)], True),
        ([on("flights", Op.WRITE, host=THERE)], False),
        ([on("flights", Op.READ)], False),
        ([on("flights", Op.WRITE), on("flights", Op.WRITE, DENY)], False),
        ([on("flights", Op.WRITE), on("f", Op.WRITE, DENY, prefixed=True)], False),
        ([on("flights", Op.WRITE), on("*", Op.WRITE, DENY)], False),
        ([on("fl", Op.WRITE, prefixed=True), on("flights", Op.ALL, DENY, prefixed=True)], True),
        ([on("fl", Op.WRITE, prefixed=True), on("f", Op.ALL, DENY, prefixed=True)], False),
        ([on("*", Op.WRITE), on("f", Op.ALL, DENY, prefixed=True)], True),
        ([on("flights", Op.WRITE), on("trains", Op.WRITE), on("trains", Op.WRITE, DENY)], True),
    ],
)
def test_whether_there_is_any_topic_to_write_to(rows: list[AclRow], allowed: bool) -> None:
    assert made(*rows).allows_some(ALICE, HERE, Op.WRITE, TOPIC) is allowed
    assert not made(*rows).allows_some(BOB, HERE, Op.WRITE, TOPIC)


def test_authorized_operations_are_bits_by_code() -> None:
    some = made(on("flights", Op.READ), on("flights", Op.ALTER_CONFIGS))
    bits = {Op.READ, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS}
    assert allowed_operations(some, ALICE, HERE, TOPIC, "flights") == sum(1 << bit for bit in bits)
    assert allowed_operations(some, BOB, HERE, TOPIC, "flights") == 0


LITERAL_T, PREFIX_T = ResourcePattern(TOPIC, "tea"), ResourcePattern(TOPIC, "te", PREFIXED)
ANY_TOPIC = ResourcePattern(TOPIC, "*")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (PatternFilter(), {LITERAL_T, PREFIX_T, ANY_TOPIC}),
        (PatternFilter(GROUP), set()),
        (PatternFilter(TOPIC, "tea", PatternType.ANY), {LITERAL_T}),
        (PatternFilter(TOPIC, "te", PatternType.ANY), {PREFIX_T}),
        (PatternFilter(TOPIC, "tea", PatternType.LITERAL), {LITERAL_T}),
        (PatternFilter(TOPIC, None, PREFIXED), {PREFIX_T}),
        (PatternFilter(TOPIC, "tea", PatternType.MATCH), {LITERAL_T, PREFIX_T, ANY_TOPIC}),
        (PatternFilter(TOPIC, "coffee", PatternType.MATCH), {ANY_TOPIC}),
        (PatternFilter(TOPIC, "*", PatternType.LITERAL), {ANY_TOPIC}),
        (PatternFilter(ResourceType.UNKNOWN, "tea"), set()),
    ],
)
def test_patterns_that_match_a_filter(wanted: PatternFilter, found: set[ResourcePattern]) -> None:
    assert {each for each in (LITERAL_T, PREFIX_T, ANY_TOPIC) if wanted.matches(each)} == found
    assert all(wanted.matches(each) for each in wanted.exact())


def test_entries_that_match_a_filter() -> None:
    entry = Entry("User:alice", HERE, Op.READ, ALLOW)
    assert EntryFilter().matches(entry)
    assert EntryFilter("User:alice", HERE, Op.READ, ALLOW).matches(entry)
    for other in (
        EntryFilter(principal="User:*"),
        EntryFilter(host="*"),
        EntryFilter(operation=Op.ALL),
        EntryFilter(permission=DENY),
    ):
        assert not other.matches(entry)
        assert not AclFilter(entry=other).matches(AclBinding(LITERAL_T, entry))


def test_names_are_kafkas() -> None:
    assert Op.IDEMPOTENT_WRITE.label == "IdempotentWrite"
    assert Op.named("IdempotentWrite") is Op.named("IDEMPOTENTWRITE") is Op.IDEMPOTENT_WRITE
    assert ResourceType.named("TransactionalId") is ResourceType.TRANSACTIONAL_ID
    assert Op.named("Levitate") is Op.of(99) is Op.UNKNOWN


def test_settings_choose_the_authorizer_and_its_super_users() -> None:
    assert authorizer.make_authorizer({}) is None
    for name in authorizer.CLASSES:
        given = {"authorizer.class.name": name, "super.users": "User:root; User:CN=x,O=y;"}
        assert not authorizer.problems(given)
        made = authorizer.make_authorizer(given)
        assert made is not None
        assert made.allows(Principal("User", "CN=x,O=y"), HERE, Op.ALTER, ResourceType.CLUSTER)
        assert not made.allows(ALICE, HERE, Op.ALTER, ResourceType.CLUSTER)
    [problem] = authorizer.problems({"authorizer.class.name": "org.example.Mine"})
    assert "org.example.Mine" in problem
    assert "AclAuthorizer" in problem
    [problem] = authorizer.problems({"super.users": "root"})
    assert "super.users=root" in problem
