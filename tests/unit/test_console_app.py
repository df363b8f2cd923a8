"""The console's sessions, guards and error pages, over a cluster in memory."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import Response
from starlette.testclient import TestClient

from ottla.client import errors
from ottla.client.admin_types import Results
from ottla_console.registry import PAGES
from ottla_console.web.guard import host_allowed, same_origin
from ottla_console.web.page import Context, Page
from tests.worlds.console_cluster import FakeCluster

ORIGIN = {"origin": "http://127.0.0.1"}
EVERY_PAGE = (
    "/c/test/",
    "/c/test/topics",
    "/c/test/topics/topic-00001",
    "/c/test/topics/topic-00001/records",
    "/c/test/topics/topic-00001/record?partition=0&offset=995",
    "/c/test/topics/topic-00001/groups",
    "/c/test/topics/topic-00001/settings",
    "/c/test/topics/topic-00001/acls",
    "/c/test/topics/topic-00001/completeness",
    "/c/test/new-topic",
    "/c/test/topics/topic-00001/manage?before:0=5",
    "/c/test/topics/topic-00001/setting?setting=retention.ms",
    "/c/test/groups",
    "/c/test/group?id=group-0001",
    "/c/test/group/reset?id=group-0001&to=earliest&topic=topic-00001",
    "/c/test/group/delete?id=group-0001",
    "/c/test/pipelines",
    "/c/test/acls",
    "/c/test/acls/new?principal=User:anna&name=orders&operation=Read",
    "/c/test/users",
    "/c/test/users/set",
    "/c/test/quotas",
    "/c/test/quotas/edit?user=anna",
    "/c/test/topics/topic-00001/producers",
    "/c/test/transactions",
    "/c/test/transactions/held",
    "/c/test/transaction?id=payments-1",
    "/c/test/reassignments",
    "/c/test/brokers",
    "/c/test/resources",
    "/c/test/partitions",
    "/c/test/brokers/0",
    "/c/test/brokers/0/settings",
)


def token(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]


def log_in(browser: TestClient, user: str = "anna", password: str = "secret", **fields: str) -> Any:
    form = browser.get("/c/test/login")
    data = {"csrf": token(form.text), "user": user, "password": password, "mechanism": "PLAIN", **fields}
    return browser.post("/c/test/login", data=data, headers=ORIGIN)


@pytest.fixture
def secured() -> FakeCluster:
    cluster = FakeCluster()
    cluster.passwords["anna"] = "secret"
    return cluster


@pytest.mark.budget(6)
def test_every_page_answers_with_a_strict_policy_and_without_inline_scripts_or_styles() -> None:
    with FakeCluster().console() as browser:
        for path in EVERY_PAGE:
            response = browser.get(path)
            assert response.status_code == 200, path
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["cache-control"] == "no-store"
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", response.text), path


def test_pages_load_nothing_from_elsewhere() -> None:
    with FakeCluster().console() as browser:
        for path in EVERY_PAGE:
            found = re.findall(r'(?:src|href|action|hx-get)="([^"]*)"', browser.get(path).text)
            assert all(each.startswith(("/", "?", "#")) and not each.startswith("//") for each in found), path


def test_a_cluster_with_sasl_needs_a_log_in_and_leads_back_to_the_page(secured: FakeCluster) -> None:
    with secured.console() as browser:
        asked = browser.get("/c/test/topics?q=x")
        assert asked.status_code == 303
        assert asked.headers["location"] == "/c/test/login?next=%2Fc%2Ftest%2Ftopics%3Fq%3Dx"
        done = log_in(browser, next="/c/test/topics?q=x")
        assert (done.status_code, done.headers["location"]) == (303, "/c/test/topics?q=x")
        page = browser.get("/c/test/topics")
        assert page.status_code == 200
        assert "User:anna" in page.text


def test_a_wrong_password_is_refused_by_the_brokers_and_leaves_no_client_open(secured: FakeCluster) -> None:
    with secured.console() as browser:
        refused = log_in(browser, password="guessed")
        assert refused.status_code == 401
        assert "refused this user and password" in refused.text
        assert "guessed" not in refused.text
        assert browser.get("/c/test/").status_code == 303
        assert secured.clients == 0


def test_a_log_in_changes_the_session_id_and_the_token(secured: FakeCluster) -> None:
    with secured.console() as browser:
        before = browser.get("/c/test/login")
        id_before = browser.cookies["ottla-console"]
        log_in(browser)
        assert browser.cookies["ottla-console"] != id_before
        assert token(browser.get("/c/test/").text) != token(before.text)
        browser.cookies.clear()
        browser.cookies.set("ottla-console", id_before)
        assert browser.get("/c/test/").status_code == 303


@pytest.mark.parametrize(
    "after", ["//evil.example/", "https://evil.example/", "/c/other/", "/c/test//x", "/c/test/\\evil", ""]
)
def test_a_log_in_never_leads_to_another_site(secured: FakeCluster, after: str) -> None:
    with secured.console() as browser:
        assert log_in(browser, next=after).headers["location"] == "/c/test/"


def test_a_log_out_closes_the_client_of_the_principal(secured: FakeCluster) -> None:
    with secured.console() as browser:
        log_in(browser)
        page = browser.get("/c/test/")
        assert secured.clients == 2
        out = browser.post("/c/test/logout", data={"csrf": token(page.text)}, headers=ORIGIN)
        assert out.status_code == 303
        browser.get("/healthz")
        assert secured.clients == 0
        assert browser.get("/c/test/").status_code == 303


def test_a_session_ends_when_no_person_makes_requests(secured: FakeCluster) -> None:
    clock = [0.0]
    with secured.console(clock=clock, idle_s=600) as browser:
        log_in(browser)
        for _ in range(4):
            clock[0] += 300
            polled = browser.get("/c/test/", headers={"hx-request": "true", "hx-source": "div#live"})
        assert polled.headers["hx-redirect"].startswith("/c/test/login")


def test_a_request_of_a_person_keeps_the_session_but_not_beyond_its_lifetime(secured: FakeCluster) -> None:
    clock = [0.0]
    with secured.console(clock=clock, idle_s=600, lifetime_s=1500) as browser:
        log_in(browser)
        for _ in range(3):
            clock[0] += 500
            assert browser.get("/c/test/").status_code == 200
        clock[0] += 500
        assert browser.get("/c/test/").status_code == 303


def test_sessions_with_equal_credentials_share_one_client(secured: FakeCluster) -> None:
    with secured.console() as browser:
        for _ in range(3):
            browser.cookies.clear()
            log_in(browser)
        assert secured.clients == 2  # one for pages, one for the collector


def test_the_cookie_is_closed_to_scripts_and_secure_with_tls(secured: FakeCluster) -> None:
    with secured.console(tls=True) as browser:
        cookie = browser.get("/c/test/login").headers["set-cookie"]
        assert cookie.startswith("__Host-ottla-console=")
        for part in ("HttpOnly", "Secure", "SameSite=lax", "Path=/"):
            assert part in cookie
        assert "max-age" in browser.get("/").headers["strict-transport-security"]


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        (ORIGIN, {"csrf": "wrong"}, 403),
        (ORIGIN, {}, 403),
        ({"origin": "http://evil.example"}, None, 403),
        ({}, None, 403),
        ({**ORIGIN, "sec-fetch-site": "cross-site"}, None, 403),
        (ORIGIN, None, 303),
    ],
)
def test_a_post_needs_the_origin_and_the_token(
    headers: dict[str, str], data: dict[str, str] | None, status: int
) -> None:
    with FakeCluster().console() as browser:
        right = {"csrf": token(browser.get("/c/test/topics").text), "topic": "topic-00001"}
        given = right if data is None else {**data, "topic": "topic-00001"}
        assert browser.post("/c/test/favourites", data=given, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("localhost:8080", True),
        ("10.1.2.3", True),
        ("console.example", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[bad", False),
    ],
)
def test_only_known_names_are_served(host: str, allowed: bool) -> None:
    assert host_allowed(host, {"console.example"}) is allowed


def test_a_rebound_name_gets_no_page() -> None:
    with FakeCluster().console() as browser:
        refused = browser.get("/c/test/", headers={"host": "evil.example"})
        assert refused.status_code == 421
        assert "--allowed-host" in refused.text


def test_an_origin_without_tls_is_not_the_same_with_tls() -> None:
    headers = {"host": "console.example", "origin": "http://console.example"}
    assert same_origin(headers, tls=False)
    assert not same_origin(headers, tls=True)


async def _change(ctx: Context) -> Response:
    async with ctx.change("topic.delete", ctx.form["topic"], password_is="never given"):
        if ctx.form["topic"] == "forbidden":
            raise errors.TopicAuthorizationFailedError("no")
    return ctx.redirect("topics", flash="Deleted.")


CHANGE = Page("change", _change, "Change", method="POST", changes=True)


def test_a_change_needs_writes() -> None:
    with FakeCluster().console((*PAGES, CHANGE)) as browser:
        data = {"csrf": token(browser.get("/c/test/topics").text), "topic": "a b"}
        refused = browser.post("/c/test/change", data=data, headers=ORIGIN)
        assert refused.status_code == 403
        assert "--writes" in refused.text


def test_a_change_writes_one_line_of_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster().console((*PAGES, CHANGE), writes=True) as browser:
        data = {"csrf": token(browser.get("/c/test/topics").text)}
        with caplog.at_level(logging.INFO, logger="ottla_console.audit"):
            done = browser.post("/c/test/change", data={**data, "topic": "a b"}, headers=ORIGIN)
            failed = browser.post("/c/test/change", data={**data, "topic": "forbidden"}, headers=ORIGIN)
        assert (done.status_code, failed.status_code) == (303, 502)
        lines = [record.getMessage() for record in caplog.records if record.name == "ottla_console.audit"]
        start = "cluster=test principal=- client=testclient action=topic.delete"
        assert lines == [
            f'{start} resource="a b" outcome=done password_is="never given"',
            f'{start} resource=forbidden outcome=TOPIC_AUTHORIZATION_FAILED password_is="never given"',
        ]
        assert "Deleted." in browser.get("/c/test/topics").text
        assert "Deleted." not in browser.get("/c/test/topics").text


def test_a_missing_right_is_named_with_the_command_that_grants_it(secured: FakeCluster) -> None:
    secured.fail["describe_log_dirs"] = errors.ClusterAuthorizationFailedError()
    secured.fail["describe_acls"] = errors.ClusterAuthorizationFailedError()
    with secured.console() as browser:
        log_in(browser)
        page = browser.get("/c/test/topics/topic-00001/acls").text
        assert "User:anna lacks Describe on the cluster" in page
        assert "ottla acls add --allow User:anna --operation describe --cluster" in page
        assert browser.get("/c/test/brokers/0").status_code == 200
        assert browser.get("/c/test/").status_code == 200


def test_pages_answer_while_no_broker_does() -> None:
    cluster = FakeCluster()
    for call in (
        "describe_cluster",
        "describe_topics",
        "describe_log_dirs",
        "list_groups",
        "list_group_offsets",
    ):
        cluster.fail[call] = errors.NetworkError("broker-0:9092: connection refused")
    with cluster.console() as browser:
        page = browser.get("/c/test/")
        assert page.status_code == 200
        assert "No broker responds" in page.text
        for path in EVERY_PAGE:
            assert browser.get(path).status_code in (200, 404), path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/c/nowhere/", "no cluster of this name"),
        ("/nowhere", "No such page"),
        ("/c/test/topics/missing", "There is no topic of this name"),
        ("/c/test/group?id=missing", "There is no group of this name"),
        ("/c/test/transaction?id=missing", "does not exist, or you may not see it"),
        ("/c/test/brokers/17", "No broker with this id"),
        ("/c/test/brokers/x", "No broker with this id"),
    ],
)
def test_what_is_not_there_says_so_and_leads_back(path: str, says: str) -> None:
    with FakeCluster().console() as browser:
        found = browser.get(path)
        assert found.status_code == 404
        assert says in found.text
        assert 'href="/' in found.text


def test_hostile_names_are_text() -> None:
    hostile = "<script>alert(1)</script>\u202e\n\x1b[31m"
    cluster = FakeCluster()
    cluster.groups.append(hostile)
    cluster.committed[hostile] = dict(cluster.committed["group-0000"])
    with cluster.console() as browser:
        browser.get("/c/test/groups")
        for path in ("/c/test/groups", "/c/test/topics", "/c/test/"):
            page = browser.get(path).text
            assert "<script>alert" not in page
            assert "\u202e" not in page
            assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\n\\x1b[31m" in page, path
        link = re.search(r'href="(/c/test/group\?id=%3Cscript[^"]*)"', browser.get("/c/test/groups").text)
        assert link
        assert "client-1" in browser.get(link[1]).text


def test_htmx_gets_the_live_part_alone() -> None:
    with FakeCluster().console() as browser:
        part = browser.get("/c/test/topics?q=00002", headers={"hx-request": "true"}).text
        assert part.startswith('<div id="live" hx-get="/c/test/topics?q=00002"')
        assert "<html" not in part
        assert "topic-00002" in part
        assert "topic-00001" not in part


def test_favourites_are_kept_in_a_cookie_and_can_be_taken_back() -> None:
    with FakeCluster().console() as browser:
        data = {
            "csrf": token(browser.get("/c/test/topics").text),
            "topic": "topic-00002",
            "next": "/c/test/topics",
        }
        browser.post("/c/test/favourites", data=data, headers=ORIGIN)
        only = browser.get("/c/test/topics?starred=1").text
        assert "topic-00002" in only
        assert "topic-00001" not in only
        browser.post("/c/test/favourites", data=data, headers=ORIGIN)
        assert "No favourites yet" in browser.get("/c/test/topics?starred=1").text


@pytest.mark.budget(5)
def test_pages_of_a_large_cluster_are_made_in_a_moment() -> None:
    with FakeCluster(topics=10_000, groups=1_000).console() as browser:
        browser.get("/c/test/groups")
        for path in ("/c/test/", "/c/test/topics", "/c/test/topics?sort=-lag&page=7", "/c/test/groups?q=9"):
            browser.get(path)  # rows are made once for each snapshot
            began = time.process_time()
            page = browser.get(path)
            assert time.process_time() - began < 0.3, path
            assert len(page.content) < 100_000


def test_what_no_item_supports_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(self: object, partitions: list[tuple[str, int]]) -> Results[Any, Any]:
        return Results({each: errors.UnsupportedVersionError("too old") for each in partitions})

    monkeypatch.setattr("tests.worlds.console_cluster.FakeAdmin.describe_producers", describe)
    with FakeCluster().console() as browser:
        page = browser.get("/c/test/topics/topic-00001/producers").text
        assert page.count("Not supported") == 1
        assert "the producers of topic-00001." in page


@pytest.mark.budget(5)
def test_the_first_page_of_a_large_cluster_and_a_collection_hold_the_loop_for_a_moment() -> None:
    """In CPU time: pages wait while the loop is held."""
    held: list[float] = []

    async def watch(collect: Callable[[], Awaitable[None]]) -> None:
        async def tick() -> None:
            last = time.process_time()
            while True:
                await asyncio.sleep(0)
                now = time.process_time()
                held.append(now - last)
                last = now

        ticking = asyncio.get_running_loop().create_task(tick())
        await collect()
        await asyncio.sleep(0)
        ticking.cancel()

    with FakeCluster(topics=10_000, groups=1_000).console() as browser:
        began = time.process_time()
        assert browser.get("/c/test/").status_code == 200
        assert time.process_time() - began < 1.0
        (access,) = browser.console.accesses._open.values()  # type: ignore[attr-defined]
        browser.portal.call(watch, access.collector._collect)
        assert max(held) < 0.6


def test_a_form_that_is_too_large_or_no_form_is_refused() -> None:
    with FakeCluster().console() as browser:
        large = browser.post("/c/test/favourites", data={"csrf": "x" * 100_000}, headers=ORIGIN)
        assert large.status_code == 413
        other = browser.post("/c/test/favourites", json={"csrf": "x"}, headers=ORIGIN)
        assert other.status_code == 415
