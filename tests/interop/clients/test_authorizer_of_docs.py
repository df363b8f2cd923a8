"""The custom authorizer of docs/guides/security.md: librdkafka's clients of two teams and one broker."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.processes import free_port
from tests.judges.one_broker import one_broker
from tests.judges.secured import PLAIN_MODULE
from tests.selection import ROOT

DOCS = ROOT / "docs/guides/security.md"
USERS = ("admin", "alice", "bob")
JAAS = f"{PLAIN_MODULE} required " + " ".join(f'user_{user}="{user}s word"' for user in USERS) + ";"
TEAMS = {"alice": ["shop-"], "bob": ["mail-", "shared"]}
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("authorizer")
    section = DOCS.read_text().split("## An authorizer of your own\n")[1]
    (directory / "company_authorizer.py").write_text(section.split("```python\n")[1].split("```")[0])
    (directory / "teams.json").write_text(json.dumps(TEAMS))
    given = dict(re.findall(r"^    ([a-z.]+)=(.+)$", section.split("\n## ")[0], re.MULTILINE))
    assert given["authorizer.class.name"] == "company_authorizer:ByTeam"
    assert given["super.users"] == "User:admin"
    port = free_port()
    settings = {
        **given,
        "authorizer.teams.file": str(directory / given["authorizer.teams.file"]),
        # Its first listener is the broker's own.
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "super.users": "User:ANONYMOUS;User:admin",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
        with one_broker(directory, settings) as broker:
            admin = AdminClient(of_user(port, "admin"))
            topics = [NewTopic(name, 1, 1) for name in ("shop-orders", "mail-sent")]
            for made in admin.create_topics(topics, request_timeout=60).values():
                made.result(timeout=120)
            yield port
            assert "authorizer.teams.file is ignored" not in broker.log.read_text()


def of_user(port: int, user: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}s word",
        "log_level": "2",
        **more,
    }


def produced(port: int, user: str, topic: str) -> int | None:
    """The error code of a record of an idempotent producer; None if it was written."""
    codes: list[int | None] = []
    producer = Producer(of_user(port, user, **{"enable.idempotence": "true"}))
    producer.produce(
        topic, b"v", on_delivery=lambda error, _: codes.append(None if error is None else error.code())
    )
    assert producer.flush(60) == 0
    return codes[0]


def test_a_user_writes_and_reads_what_its_team_has(port: int) -> None:
    assert produced(port, "alice", "shop-orders") is None
    consumer = Consumer(
        of_user(port, "alice", **{"group.id": "shop-readers", "auto.offset.reset": "earliest"})
    )
    try:
        consumer.subscribe(["shop-orders"])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        assert message.value() == b"v"
    finally:
        consumer.close()


def test_another_teams_topics_and_groups_are_denied(port: int) -> None:
    assert produced(port, "bob", "shop-orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer(of_user(port, "alice", **{"group.id": "mail-readers"}))
    try:
        consumer.subscribe(["shop-orders"])
        message = consumer.poll(60)
        assert message is not None
        assert message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        consumer.close()


def test_only_the_super_user_administers(port: int) -> None:
    bob, admin = (AdminClient(of_user(port, user)) for user in ("bob", "admin"))
    (made,) = bob.create_topics([NewTopic("other", 1, 1)]).values()
    with pytest.raises(KafkaException) as refused:
        made.result(timeout=60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    (made,) = admin.create_topics([NewTopic("other", 1, 1)]).values()
    made.result(timeout=60)
