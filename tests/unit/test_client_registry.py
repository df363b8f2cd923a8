"""The client of a schema registry: requests, caching and retries."""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.error import URLError

import pytest

from ottla.client.registry import (
    Answer,
    NotRegistered,
    Reference,
    RegistryClient,
    RegistryError,
    RegistryRefused,
    RegistryUnreachable,
    Schema,
)

Handler = Callable[[str, str, Any], Answer]


class Wire:
    """A fake network: records requests, answers by a function."""

    def __init__(self, answer: Handler) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.requests: list[urllib.request.Request] = []

    def __call__(
        self, request: urllib.request.Request, timeout_s: float, tls: ssl.SSLContext | None
    ) -> Answer:
        self.asked.append(f"{request.get_method()} {request.full_url}")
        self.requests.append(request)
        body = request.data
        return self.answer(
            request.get_method(), request.full_url, json.loads(body) if isinstance(body, bytes) else None
        )


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def ok(body: Any) -> Answer:
    return Answer(200, json.dumps(body).encode())


def error(status: int, code: int, message: str = "no") -> Answer:
    return Answer(status, json.dumps({"error_code": code, "message": message}).encode())


def client(
    answer: Handler, urls: str = "http://one:8081", **options: str
) -> tuple[RegistryClient, Wire, Clock]:
    wire, clock = Wire(answer), Clock()
    named = {name.replace("_", "."): value for name, value in options.items()}
    return RegistryClient(urls, named, transport=wire, sleep=clock.sleep, clock=clock), wire, clock


def test_a_schema_is_requested_once() -> None:
    asking, wire, _ = client(lambda method, url, body: ok({"schema": '"string"'}))
    assert asking.schema(7) == asking.schema(7) == Schema('"string"', "AVRO")
    assert wire.asked == ["GET http://one:8081/schemas/ids/7"]


def test_an_unknown_id_is_cached_for_some_seconds() -> None:
    known: dict[int, str] = {}
    asking, wire, clock = client(
        lambda method, url, body: (
            ok({"schema": known[9]}) if known else error(404, 40403, "Schema 9 not found")
        )
    )
    for _ in range(3):
        with pytest.raises(NotRegistered, match="Schema 9 not found") as raised:
            asking.schema(9)
        assert (raised.value.status, raised.value.code) == (404, 40403)
    assert len(wire.asked) == 1
    known[9] = '"long"'
    clock.now_s += 11
    assert asking.schema(9).text == '"long"'


def test_a_busy_registry_is_retried_with_backoff() -> None:
    answers = iter([error(503, 50301), error(500, 50001), ok({"schema": "{}", "schemaType": "JSON"})])
    asking, wire, clock = client(lambda *asked: next(answers))
    assert asking.schema(1).type == "JSON"
    assert len(wire.asked) == 3
    assert 0.1 <= clock.slept[0] <= 0.2 <= clock.slept[1] <= 0.4


def test_the_next_url_is_used_when_one_does_not_answer() -> None:
    def answer(method: str, url: str, body: Any) -> Answer:
        if "one" in url:
            raise URLError(ConnectionRefusedError(111, "Connection refused"))
        return ok(["a"])

    asking, wire, clock = client(answer, "http://one:1/, http://two:2")
    assert asking.subjects() == ["a"]
    assert asking.subjects() == ["a"]
    assert wire.asked == [
        "GET http://one:1/subjects",
        "GET http://two:2/subjects",
        "GET http://two:2/subjects",
    ]
    assert clock.slept == []


def test_the_error_after_the_last_attempt_has_the_cause() -> None:
    def answer(method: str, url: str, body: Any) -> Answer:
        raise URLError(ConnectionRefusedError(111, "Connection refused"))

    asking, wire, _ = client(answer, max_retries="1")
    with pytest.raises(RegistryUnreachable, match="2 attempts; http://one:8081: Connection refused"):
        asking.latest("s")
    assert len(wire.asked) == 2


def test_a_refusal_is_final_and_names_the_request() -> None:
    asking, wire, _ = client(lambda *asked: error(409, 409, "not compatible"))
    with pytest.raises(
        RegistryRefused, match=r"POST http://one:8081/subjects/a%2Fb/versions: not compatible \(409\)"
    ):
        asking.register("a/b", Schema('"int"'))
    assert len(wire.asked) == 1


def test_a_response_of_another_server_is_an_error_with_a_hint() -> None:
    asking, _, _ = client(lambda *asked: Answer(200, b"<html>"))
    with pytest.raises(RegistryError, match="is this a schema registry"):
        asking.latest("s")


def test_references_are_resolved_bottom_up_and_once() -> None:
    kept = {
        "money": {"schema": "money", "references": []},
        "item": {"schema": "item", "references": [{"name": "Money", "subject": "money", "version": 1}]},
    }

    def answer(method: str, url: str, body: Any) -> Answer:
        subject = url.split("/")[4]
        return ok({"subject": subject, "version": 1, "id": 5, **kept[subject]})

    asking, wire, _ = client(answer)
    order = Schema("order", "AVRO", (Reference("Item", "item", 1), Reference("Money", "money", 1)))
    assert list(asking.referenced(order)) == ["Money", "Item"]
    asking.referenced(order)
    assert len(wire.asked) == 2


def test_the_compatibility_of_a_subject_is_its_own_or_the_global_one() -> None:
    asking, wire, _ = client(lambda method, url, body: ok({"compatibilityLevel": "FULL"}))
    assert asking.compatibility("a/b") == "FULL"
    assert wire.asked == ["GET http://one:8081/config/a%2Fb?defaultToGlobal=true"]


def test_circular_references_are_refused() -> None:
    def answer(method: str, url: str, body: Any) -> Answer:
        subject = url.split("/")[4]
        other = {"a": "b", "b": "a"}[subject]
        references = [{"name": other, "subject": other, "version": 1}]
        return ok({"subject": subject, "version": 1, "id": 5, "schema": subject, "references": references})

    asking, _, _ = client(answer)
    with pytest.raises(RegistryError, match="a → b → a"):
        asking.referenced(Schema("x", "AVRO", (Reference("a", "a", 1),)))


def test_credentials_come_from_the_option_or_the_url_and_are_not_logged() -> None:
    expected = "Basic " + base64.b64encode(b"me:p@ss").decode()
    for urls, options in (
        ("http://me:p%40ss@one:8081", {}),
        ("http://one:8081", {"basic_auth_user_info": "me:p@ss"}),
    ):
        asking, wire, _ = client(lambda *asked: error(401, 401, "who?"), urls, **options)
        with pytest.raises(RegistryRefused) as raised:
            asking.subjects()
        assert wire.requests[0].get_header("Authorization") == expected
        assert "p@ss" not in str(raised.value)
        assert "p%40ss" not in str(raised.value)


def test_a_client_can_be_sent_to_executors() -> None:
    asking = RegistryClient("http://one:8081", {"timeout": "3"})
    sent = pickle.loads(pickle.dumps(asking))
    assert sent._urls == ["http://one:8081"]
    refused = pickle.loads(pickle.dumps(NotRegistered("m", 404, 40403)))
    assert (str(refused), refused.status, refused.code) == ("m", 404, 40403)


@pytest.mark.parametrize(
    ("urls", "options", "message"),
    [
        ("", {}, r"registry url \(empty\): must be http"),
        ("ftp://x", {}, "registry url ftp://x: must be"),
        ("http://x", {"schema.registry.url": "y"}, "option schema.registry.url is not known; allowed: basic"),
        ("http://x", {"timeout": "soon"}, "option timeout: soon is not a number"),
        ("http://x", {"basic.auth.user.info": "me"}, "must be USER:PASSWORD"),
        ("https://x", {"ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location=/nowhere.pem: .*No such file"),
    ],
)
def test_an_invalid_setting_is_refused_at_once(urls: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegistryClient(urls, options)
