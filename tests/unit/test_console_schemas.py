"""The pages of the schema registry: view models by tables, the pages over a registry in memory."""

from __future__ import annotations

import html
import json
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from ottla.client import registry as client
from ottla.client.registry import Answer, Schema
from ottla_console.pages import schemas
from ottla_console.pages.schemas.view import Line, difference, pretty, version_in
from ottla_console.settings import Registry
from tests.worlds.console_cluster import FakeCluster

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": "string", "default": ""}]}
HOSTILE = "<script>alert(1)</script>/../x"


class FakeRegistry:
    """Answers requests by subject and version."""

    def __init__(self) -> None:
        self.subjects = {"orders-value": [json.dumps(FIRST), json.dumps(SECOND)], HOSTILE: ['"string"']}
        self.down = False

    def send(self, request: urllib.request.Request, timeout_s: float, tls: ssl.SSLContext | None) -> Answer:
        if self.down:
            raise ConnectionRefusedError(111, "Connection refused")
        parts = [unquote(each) for each in urlsplit(request.full_url).path.split("/")[1:]]
        body = self._answer(parts)
        if body is None:
            return Answer(404, json.dumps({"error_code": 40401, "message": "Subject not found"}).encode())
        return Answer(200, json.dumps(body).encode())

    def _answer(self, parts: list[str]) -> Any:
        match parts:
            case ["subjects"]:
                return sorted(self.subjects)
            case ["config", _]:
                return {"compatibilityLevel": "BACKWARD"}
            case ["subjects", name, "versions"] if name in self.subjects:
                return [*range(1, len(self.subjects[name]) + 1)]
            case ["subjects", name, "versions", which] if name in self.subjects:
                texts = self.subjects[name]
                number = len(texts) if which == "latest" else int(which)
                return {"subject": name, "version": number, "id": 40 + number, "schema": texts[number - 1]}
        return None


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    found = FakeRegistry()
    monkeypatch.setattr(client, "send", found.send)
    schemas._client.cache_clear()
    yield found
    schemas._client.cache_clear()


def cluster() -> FakeCluster:
    made = FakeCluster()
    made.registry = Registry("http://registry:8081")
    return made


def test_a_difference_is_by_fields_of_a_schema() -> None:
    texts = [pretty(Schema(json.dumps(each))) for each in (FIRST, SECOND)]
    lines = difference(*texts)
    assert lines[0] == Line("gap", "from line 5")
    assert Line("added", '      "name": "note",') in lines
    assert not [line for line in lines if line.kind == "removed" and "id" in line.text]
    assert difference(texts[0], texts[0]) == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Schema('{"a":1}', "JSON"), '{\n  "a": 1\n}'),
        (Schema("\nmessage M {}\n", "PROTOBUF"), "message M {}"),
        (Schema("not json", "AVRO"), "not json"),
    ],
)
def test_schemas_are_indented_where_they_are_json(schema: Schema, text: str) -> None:
    assert pretty(schema) == text


@pytest.mark.parametrize(("text", "expected"), [("2", 2), ("3", None), ("", None), ("x", None), ("-1", None)])
def test_only_versions_of_the_subject_are_shown(text: str, expected: int | None) -> None:
    assert version_in(text, [1, 2]) == expected


def test_subjects_are_listed_with_their_latest_version(registry: FakeRegistry) -> None:
    with cluster().console() as browser:
        page = browser.get("/c/test/schemas").text
    assert "orders-value" in page
    assert ">42<" in page
    assert "<script>alert" not in page
    assert 'href="/c/test/schemas"' in page


def test_a_version_is_compared_with_the_one_before(registry: FakeRegistry) -> None:
    with cluster().console() as browser:
        page = html.unescape(browser.get("/c/test/schema?name=orders-value").text)
        assert "From version 1 to 2" in page
        assert '<ins>      "name": "note",</ins>' in page
        assert "a new schema reads what the latest version has written" in page
        page = html.unescape(browser.get("/c/test/schema?name=orders-value&version=1&against=2").text)
        assert "From version 2 to 1" in page
        assert '<del>      "name": "note",</del>' in page
        assert browser.get("/c/test/schema?name=absent").status_code == 404


def test_without_a_registry_the_page_is_not_in_the_navigation_and_says_why() -> None:
    with FakeCluster().console() as browser:
        assert 'href="/c/test/schemas"' not in browser.get("/c/test/topics").text
        assert "--schema-registry" in browser.get("/c/test/schemas").text


def test_a_registry_that_is_away_is_a_problem_of_the_page(registry: FakeRegistry) -> None:
    registry.down = True
    with cluster().console() as browser:
        page = browser.get("/c/test/schemas")
        assert page.status_code == 200
        assert "Connection refused" in page.text
