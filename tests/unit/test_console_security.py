"""ACLs, users and quotas of the console: view models by tables, the forms over a cluster in memory."""

from __future__ import annotations

import html
import logging
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from ottla.client import errors
from ottla.client.admin_types import QuotaEntity
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_console.pages.acls.view import Draft, bindings_of, draft_of, filter_of, sentence
from ottla_console.pages.acls.view import Invalid as NoAcl
from ottla_console.pages.quotas.view import Invalid as NoQuota
from ottla_console.pages.quotas.view import changes_of, entity_of, entity_params, entity_text
from ottla_console.pages.users.view import Invalid as NoCredential
from ottla_console.pages.users.view import credential_of
from tests.worlds.console_cluster import FakeCluster

ORIGIN = {"origin": "http://127.0.0.1"}


def acl(
    principal: str = "User:anna",
    operation: Operation = Operation.READ,
    kind: ResourceType = ResourceType.TOPIC,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name, pattern), Entry(principal, host, operation, permission))


def post(browser: TestClient, path: str, form: str, **data: str) -> Any:
    found = re.search(r'name="csrf" value="([^"]+)"', browser.get(f"/c/test/{form}").text)
    assert found
    return browser.post(f"/c/test/{path}", data={"csrf": found[1], **data}, headers=ORIGIN)


def shown(browser: TestClient, path: str) -> str:
    return html.unescape(browser.get(f"/c/test/{path}").text)


# --- ACLs ---


@pytest.mark.parametrize(
    ("acls", "says"),
    [
        (
            [acl(), acl(operation=Operation.DESCRIBE)],
            "User:anna, from any host, may Read and Describe the topic orders. A consumer needs Read on its "
            "group, too.",
        ),
        (
            [acl(operation=Operation.WRITE, pattern=PatternType.PREFIXED, name="pay", host="10.0.0.7")],
            "User:anna, from 10.0.0.7, may Write topics that begin with pay. This implies Describe.",
        ),
        (
            [acl(operation=Operation.ALL, name="*")],
            "User:anna, from any host, may do everything with all topics.",
        ),
        (
            [
                acl("User:*", permission=Permission.DENY),
                acl("User:*", Operation.WRITE, permission=Permission.DENY),
            ],
            "Every user, from any host, may not Read or Write the topic orders. A Deny has precedence over "
            "each Allow.",
        ),
        (
            [acl(operation=Operation.ALTER, kind=ResourceType.CLUSTER, name="kafka-cluster")],
            "User:anna, from any host, may Alter the cluster. This implies Describe.",
        ),
        (
            [acl(operation=Operation.ALTER_CONFIGS)],
            "User:anna, from any host, may AlterConfigs the topic orders. This implies DescribeConfigs.",
        ),
    ],
)
def test_a_sentence_says_what_an_acl_allows(acls: list[AclBinding], says: str) -> None:
    assert sentence(acls) == says


def test_a_form_becomes_an_acl_for_each_operation() -> None:
    draft = draft_of(
        {"principal": " User:anna ", "kind": "topic", "name": "pay", "pattern": "prefixed"},
        ["Read", "Describe", "Read"],
    )
    assert bindings_of(draft) == [
        acl(name="pay", pattern=PatternType.PREFIXED),
        acl(name="pay", pattern=PatternType.PREFIXED, operation=Operation.DESCRIBE),
    ]
    cluster = Draft("User:anna", kind="cluster", name="ignored", operations=("Create",))
    assert bindings_of(cluster) == [
        acl(operation=Operation.CREATE, kind=ResourceType.CLUSTER, name="kafka-cluster")
    ]


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        (Draft("anna", name="x", operations=("Read",)), "TYPE:NAME"),
        (Draft("User:", name="x", operations=("Read",)), "TYPE:NAME"),
        (Draft("User:a", host="example.org", name="x", operations=("Read",)), "IP address"),
        (Draft("User:a", permission="Any", name="x", operations=("Read",)), "permission"),
        (Draft("User:a", kind="pets", name="x", operations=("Read",)), "resource"),
        (Draft("User:a", name="", operations=("Read",)), "must have a name"),
        (Draft("User:a", name="*", prefixed=True, operations=("Read",)), "all names"),
        (Draft("User:a", name="x"), "at least one operation"),
        (Draft("User:a", name="x", operations=("ClusterAction",)), "no operation of this resource"),
    ],
)
def test_a_form_that_is_no_acl_says_what_is_allowed(draft: Draft, says: str) -> None:
    with pytest.raises(NoAcl, match=says):
        bindings_of(draft)


def test_the_filter_of_a_deletion_matches_one_acl_alone() -> None:
    others = [
        acl(pattern=PatternType.PREFIXED),
        acl(name="*"),
        acl(operation=Operation.ALL),
        acl("User:*"),
        acl(host="10.0.0.7"),
        acl(permission=Permission.DENY),
        acl(kind=ResourceType.GROUP),
    ]
    assert [each for each in (acl(), *others) if filter_of(acl()).matches(each)] == [acl()]


def test_acls_are_filtered_created_and_deleted(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.acls = [acl("User:bert", kind=ResourceType.GROUP, name="g", permission=Permission.DENY)]
    form = {"principal": "User:anna", "kind": "topic", "name": "orders", "permission": "Allow"}
    with cluster.console(writes=True) as browser, caplog.at_level(logging.INFO, "ottla_console.audit"):
        assert "User:bert" in shown(browser, "acls?kind=group&permission=Deny")
        assert "User:bert" not in shown(browser, "acls?kind=topic")
        preview = "acls/new?principal=User:anna&kind=topic&name=orders&operation=Read&operation=Write"
        page = shown(browser, preview)
        assert "User:anna, from any host, may Read and Write the topic orders." in page
        assert len(cluster.acls) == 1
        done = post(browser, "acls/new", preview, **form, operations="Read,Write")
        assert done.status_code == 303
        assert {acl(), acl(operation=Operation.WRITE)} < set(cluster.acls)
        assert "They exist already" in shown(browser, preview)
        fields = {"host": "*", "operation": "Read", "pattern": "Literal", **form}
        query = "&".join(f"{name}={value}" for name, value in fields.items())
        done = post(browser, "acls/delete", f"acls/delete?{query}", **fields)
        assert acl() not in cluster.acls
        assert len(cluster.acls) == 2
        post(browser, "acls/delete", f"acls/delete?{query}", **fields)
        assert "there is no such ACL" in shown(browser, "acls")
    lines = [record.getMessage() for record in caplog.records]
    assert "operations=Read,Write pattern=Literal" in lines[0]
    assert 'action=acl.delete resource="the topic orders" outcome=done of=User:anna' in lines[1]
    assert "outcome=RESOURCE_NOT_FOUND" in lines[2]


@pytest.mark.parametrize(
    ("path", "call", "error", "says"),
    [
        ("acls", "describe_acls", errors.ClusterAuthorizationFailedError(), "lacks Describe on the cluster"),
        ("acls", "describe_acls", errors.SecurityDisabledError(), "the brokers have no authorizer"),
        (
            "users",
            "describe_user_scram_credentials",
            errors.ClusterAuthorizationFailedError(),
            "lacks Describe on the cluster",
        ),
        (
            "users",
            "describe_user_scram_credentials",
            errors.UnsupportedVersionError("too old"),
            "does not support it",
        ),
        (
            "quotas",
            "describe_client_quotas",
            errors.ClusterAuthorizationFailedError(),
            "lacks DescribeConfigs on the cluster",
        ),
    ],
)
def test_a_page_without_its_right_says_which_is_missing(
    path: str, call: str, error: Exception, says: str
) -> None:
    cluster = FakeCluster()
    cluster.fail[call] = error
    with cluster.console(writes=True) as browser:
        page = browser.get(f"/c/test/{path}")
    assert page.status_code == 200
    assert says in page.text
    assert "<table>" not in page.text


# --- users ---

CREDENTIAL = {"user": "carl", "mechanism": "SCRAM-SHA-512", "iterations": "4096"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"user": " "}, "a name"),
        ({"mechanism": "PLAIN"}, "SCRAM-SHA-512"),
        ({"password": ""}, "a password"),
        ({"again": "other"}, "differ"),
        ({"iterations": "4095"}, "4096 to 16384"),
        ({"iterations": "many"}, "4096 to 16384"),
    ],
)
def test_a_form_that_is_no_credential_says_why_without_the_password(
    change: dict[str, str], says: str
) -> None:
    form = {**CREDENTIAL, "password": "hush hush", "again": "hush hush", **change}
    with pytest.raises(NoCredential, match=says) as refused:
        credential_of(form)
    assert "hush" not in str(refused.value)


def test_a_credential_is_set_and_deleted_and_its_password_is_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    words = {"password": "hush hush", "again": "hush hush"}
    with cluster.console(writes=True) as browser, caplog.at_level(logging.INFO):
        wrong = post(browser, "users/set", "users/set", **CREDENTIAL, **{**words, "again": "hush"})
        assert wrong.status_code == 400
        assert "the passwords differ" in wrong.text
        assert "hush" not in wrong.text
        post(browser, "users/set", "users/set", **CREDENTIAL, **words)
        assert cluster.credentials == {"carl": {"SCRAM-SHA-512": 4096}}
        page = shown(browser, "users")
        assert "carl can log in by SCRAM-SHA-512" in page
        user = {"user": "carl", "mechanism": "SCRAM-SHA-512"}
        post(browser, "users/delete", "users/delete?user=carl", **user, confirm="karl")
        assert cluster.credentials["carl"]
        post(browser, "users/delete", "users/delete?user=carl", **user, confirm="carl")
        assert not cluster.credentials["carl"]
    assert "action=user.set-credential resource=carl outcome=done" in caplog.text
    assert "hush" not in caplog.text


# --- quotas ---


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        ({"user": "anna"}, "user anna"),
        ({"user": "anna", "client-id": "etl"}, "user anna, client id etl"),
        ({"user": None}, "each other user"),
        ({"user": None, "client-id": "etl"}, "each other user, client id etl"),
        ({"ip": "10.0.0.7"}, "address 10.0.0.7"),
    ],
)
def test_an_entity_has_a_name_and_an_address(entity: dict[str, str | None], text: str) -> None:
    assert entity_text(entity) == text
    assert entity_of(entity_params(entity)) == QuotaEntity(entity)


@pytest.mark.parametrize("params", [{}, {"user": ""}, {"ip": "10.0.0.7", "user": "anna"}])
def test_what_names_no_entity_is_refused(params: dict[str, str]) -> None:
    with pytest.raises(NoQuota):
        entity_of(params)


def test_an_empty_field_removes_its_quota_and_others_stay() -> None:
    present = {"producer_byte_rate": 10.0, "consumer_byte_rate": 20.0}
    form = {"producer_byte_rate": "", "consumer_byte_rate": "20", "request_percentage": "1,200.5"}
    entity = QuotaEntity({"user": "anna"})
    assert changes_of(entity, form, present) == {"producer_byte_rate": None, "request_percentage": 1200.5}


@pytest.mark.parametrize(
    ("entity", "form"),
    [
        ({"user": "a"}, {"producer_byte_rate": "-1"}),
        ({"user": "a"}, {"producer_byte_rate": "0"}),
        ({"user": "a"}, {"producer_byte_rate": "nan"}),
        ({"user": "a"}, {"producer_byte_rate": "fast"}),
        ({"user": "a"}, {"connection_creation_rate": "5"}),
        ({"ip": "10.0.0.7"}, {"producer_byte_rate": "5"}),
    ],
)
def test_what_is_no_quota_is_refused(entity: dict[str, str | None], form: dict[str, str]) -> None:
    with pytest.raises(NoQuota):
        changes_of(QuotaEntity(entity), form, {})


def test_quotas_are_set_changed_and_removed() -> None:
    cluster = FakeCluster()
    entity = QuotaEntity({"user": "anna"})
    with cluster.console(writes=True) as browser:
        post(browser, "quotas/edit", "quotas/edit", user="anna", producer_byte_rate="1048576")
        assert cluster.quotas == {entity: {"producer_byte_rate": 1048576.0}}
        page = shown(browser, "quotas")
        assert "1.0 MiB/s" in page
        assert "quotas/edit?user=anna" in page
        wrong = post(browser, "quotas/edit", "quotas/edit?user=anna", user="anna", producer_byte_rate="x")
        assert wrong.status_code == 400
        assert "above 0" in wrong.text
        post(browser, "quotas/delete", "quotas/edit?user=anna", user="anna")
        assert cluster.quotas == {entity: {}}
        assert "user anna" not in shown(browser, "quotas").split("<main")[1].split('id="live"')[1]


def test_a_change_without_the_right_is_a_message_with_the_command() -> None:
    cluster = FakeCluster()
    cluster.fail["alter_client_quota"] = errors.ClusterAuthorizationFailedError()
    with cluster.console(writes=True) as browser:
        post(browser, "quotas/edit", "quotas/edit", user="anna", producer_byte_rate="5")
        assert "lacks AlterConfigs on the cluster" in shown(browser, "quotas")
