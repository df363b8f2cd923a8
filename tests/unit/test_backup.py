"""Backups: their format, what a restore does and leaves, and the folders that they are in."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_operator.backup.cluster import LogRange, Restore, plan_restore
from ottla_operator.backup.document import Backup, BackupError, OffsetRecord, TopicRecord, dumped, loaded
from ottla_operator.backup.objects import Folder, _failed, object_name, split

ACL = AclBinding(
    ResourcePattern(ResourceType.TOPIC, "orders", PatternType.LITERAL),
    Entry("User:anna", "*", Operation.READ, Permission.ALLOW),
)
OFFSET = OffsetRecord("shop", "orders", 0, 5, "m")
DEFAULT_USER = (("user", None),)
BACKUP = Backup(
    "id",
    "2026-11-27T14:05:12Z",
    {"orders": TopicRecord("orders", 6, 3, {"retention.ms": "1000"}), "ünï": TopicRecord("ünï", 1, 1)},
    {"": {"log.retention.ms": "5"}, "1": {"num.io.threads": "9"}},
    frozenset({ACL}),
    {DEFAULT_USER: {"producer_byte_rate": 1.5}},
    {"anna": {"SCRAM-SHA-512": 8192}},
    frozenset({OFFSET}),
    ("the password of user anna (SCRAM-SHA-512)",),
)
LOGS = {("orders", 0): LogRange(0, 5)}


# ---- the format


def test_a_backup_is_read_as_it_was_written_and_has_the_same_bytes_each_time() -> None:
    assert loaded(dumped(BACKUP)) == BACKUP
    assert dumped(loaded(dumped(BACKUP))) == dumped(BACKUP)


def changed(edit: Callable[[list[dict[str, Any]]], object]) -> bytes:
    records = [json.loads(line) for line in gzip.decompress(dumped(BACKUP)).splitlines()]
    edit(records)
    return gzip.compress(
        b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in records)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no backup of Ottla"),
        (b"{}", "no backup of Ottla"),
        (gzip.compress(b"{}\n"), "no backup of Ottla"),
        (dumped(BACKUP)[:-9], "damaged"),
        (
            changed(lambda r: r[0].update(version=2)),
            "has version 2, and this .* version 1: use a newer",
        ),
        (changed(lambda r: r.pop()), "its end is missing"),
        (changed(lambda r: r.pop(1)), "its end is missing"),
        (changed(lambda r: r[1].update(partitions=7)), "its checksum differs"),
    ],
)
def test_a_file_that_is_no_backup_of_this_version_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BackupError, match=message):
        loaded(content)


def test_a_line_of_an_unknown_kind_is_refused_and_not_skipped() -> None:
    text = gzip.decompress(dumped(BACKUP)).replace(b'"kind":"acl"', b'"kind":"new"')
    lines = text.splitlines(keepends=True)
    end = {"kind": "end", "lines": len(lines) - 1, "sha256": hashlib.sha256(b"".join(lines[:-1])).hexdigest()}
    with pytest.raises(BackupError, match="'new'"):
        loaded(gzip.compress(b"".join(lines[:-1]) + json.dumps(end).encode() + b"\n"))


# ---- the plan


def plan(target: Backup, **more: Any) -> Restore:
    return plan_restore(BACKUP, target, **{"brokers": (0, 1), "logs": {}, **more})


def test_all_of_a_backup_is_restored_into_an_empty_cluster_but_offsets_without_records() -> None:
    found = plan(Backup())
    assert [topic.name for topic in found.topics] == ["orders", "ünï"]
    assert (found.settings, found.acls, found.quotas) == (BACKUP.settings, BACKUP.acls, BACKUP.quotas)
    assert found.offsets == frozenset()
    assert found.notes == (
        "group shop: the records of 1 offsets are not there; restore again with the data",
        "user anna has no password yet: set it, or create its User resource",
    )


def test_offsets_are_restored_where_the_records_are() -> None:
    assert plan(Backup(), logs=LOGS).offsets == {OFFSET}
    assert plan(Backup(), logs={("orders", 0): LogRange(0, 4)}).offsets == frozenset()
    assert plan(Backup(), logs={("orders", 0): LogRange(6, 9)}).offsets == frozenset()
    at_start = replace(BACKUP, offsets=frozenset({replace(OFFSET, offset=0)}))
    assert plan_restore(at_start, Backup(), brokers=(0,), logs={}).offsets == at_start.offsets


def test_a_resource_that_exists_is_not_restored_again() -> None:
    found = plan(BACKUP, logs=LOGS)
    assert (found.lines(), found.notes) == ([], ())


def test_a_resource_that_differs_stays_and_is_reported() -> None:
    target = replace(
        BACKUP,
        topics={"orders": TopicRecord("orders", 3, 3), "ünï": BACKUP.topics["ünï"]},
        settings={"": {"log.retention.ms": "6"}, "1": {"num.io.threads": "9"}},
        quotas={DEFAULT_USER: {"producer_byte_rate": 2.0}},
        offsets=frozenset({replace(OFFSET, offset=9)}),
    )
    found = plan(target, logs=LOGS)
    assert found.lines() == []
    assert found.notes == (
        "topic orders exists and differs; it stays",
        "setting log.retention.ms of all brokers is 6 and not 5; it stays",
        "quota producer_byte_rate of {'user': None} is 2 and not 1.5; it stays",
        "group shop has another offset in orders-0; it stays",
    )


def test_settings_of_a_broker_that_is_not_there_are_left() -> None:
    found = plan(Backup(), brokers=(0,))
    assert found.settings == {"": {"log.retention.ms": "5"}}
    assert "settings of broker 1: there is no such broker" in found.notes


def test_a_part_is_restored_alone() -> None:
    found = plan(Backup(), parts=("acls",))
    assert found.lines() == ["ACL allow User:anna Read on topic literal orders from *"]
    assert found.notes == ()


# ---- folders


def test_a_folder_lists_keeps_and_reads_the_backups_of_a_cluster(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}/new/backups")

    async def work() -> None:
        times = [f"2026-11-{day}T00:00:00Z" for day in ("09", "10", "11")]
        for cluster in ("demo", "demo-2"):
            for time in reversed(times):
                await folder.put(object_name(cluster, time), f"{cluster} {time}".encode())
        (tmp_path / "new/backups/other.txt").write_text("x")
        assert len(await folder.names()) == 6
        names = await folder.names("demo")
        assert names == [f"demo-202611{day}T000000Z.ndjson.gz" for day in ("09", "10", "11")]
        assert await folder.keep("demo", 2) == names[:1]
        assert await folder.names("demo") == names[1:]
        assert len(await folder.names("demo-2")) == 3
        assert await folder.get(names[2]) == b"demo 2026-11-11T00:00:00Z"
        with pytest.raises(BackupError, match="not found"):
            await folder.get(names[0])

    asyncio.run(work())


def test_another_scheme_is_refused() -> None:
    with pytest.raises(BackupError, match="'ftp://x' is not allowed: must be s3://"):
        asyncio.run(Folder("ftp://x").names())


def test_a_url_is_a_folder_or_a_backup_in_it() -> None:
    assert split("s3://b/demo") == ("s3://b/demo", "")
    assert split("s3://b/x/demo-20261127T140512Z.ndjson.gz") == (
        "s3://b/x",
        "demo-20261127T140512Z.ndjson.gz",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no route\nsource: x", "no route"),
        (
            'PUT http://x - 403 Forbidden: <?xml version="1.0"?>\n<Error><Code>SignatureDoesNotMatch</Code>'
            "<Message>the key\nis wrong</Message><RequestId>1</RequestId></Error>",
            "SignatureDoesNotMatch: the key is wrong",
        ),
    ],
)
def test_a_failure_has_the_error_of_the_store(text: str, reason: str) -> None:
    assert str(_failed("s3://b", OSError(text))) == f"s3://b: {reason}"
