"""The journal of a development broker restores nodes, versions and transaction ids after a restart."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.dev.journal import DamagedJournal, journaled_tree
from ottla.metadata.memory import MemoryTree
from ottla.metadata.store import ANY_VERSION, Check, Create, Delete, Operation, SetData, Stat, StoreError

PATHS = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep"]
paths = st.sampled_from(PATHS)
data = st.binary(max_size=3)
versions = st.sampled_from([ANY_VERSION, 0, 1])
operations = st.one_of(
    st.builds(Create, paths, data, st.just(False), st.booleans()),
    st.builds(SetData, paths, data, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)


def tree(path: Path) -> AbstractContextManager[MemoryTree]:
    return journaled_tree(path, clock=lambda: 1_700_000_000_000)


@settings(max_examples=40)
@given(st.lists(st.lists(operations, min_size=1, max_size=3), max_size=12), st.integers(0, 12))
def test_the_restored_tree_equals_the_tree_in_memory(changes: list[list[Operation]], restart_at: int) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        path = Path(folder) / "metadata.jsonl"
        memory: MemoryTree = MemoryTree(clock=lambda: 1_700_000_000_000)
        kept = opened.enter_context(tree(path))
        for number, change in enumerate(changes):
            if number == restart_at:
                kept = opened.enter_context(tree(path))
            outcomes: list[list[object]] = []
            for each in (memory, kept):
                try:
                    results = each.apply(change, 1)
                    outcomes.append([x.version if isinstance(x, Stat) else x for x in results])
                except StoreError as refused:
                    outcomes.append([refused.path])
            assert outcomes[0] == outcomes[1]
        assert _nodes(opened.enter_context(tree(path))) == _nodes(kept) == _nodes(memory)


def _nodes(of: MemoryTree) -> dict[str, object]:
    """Data and versions; transaction ids are only compared with earlier ones."""
    return {path: (data, version) for path, data, _, _, _, _, version, _ in of.dump()["nodes"]}


def test_ephemeral_nodes_end_with_the_process_and_sessions_are_new(tmp_path: Path) -> None:
    path = tmp_path / "metadata.jsonl"
    with tree(path) as first:
        session = first.new_session()
        first.apply([Create("/broker", b"here", ephemeral=True), Create("/topic")], session)
        before = first.find("/topic")
        assert before is not None
    with tree(path) as again:
        assert again.find("/broker") is None
        assert again.find("/topic") is not None
        assert again.new_session() > session
        again.apply([Create("/later")], 9)
        later = again.find("/later")
        assert later is not None
        assert later.czxid > before.czxid, "a broker's epoch only grows"


def test_a_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metadata.jsonl"
    with tree(path) as first:
        first.apply([Create("/topic")], 1)
    with path.open("a") as file:
        file.write('[9, 1, 0, [["create", "/oth')
    with tree(path) as again:
        assert again.find("/topic") is not None


def test_an_invalid_file_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "metadata.jsonl"
    path.write_text("hello\n")
    with pytest.raises(DamagedJournal, match=r"metadata.jsonl, line 1: "), tree(path):
        pass
    path.unlink()
    with tree(path) as first:
        first.apply([Create("/topic")], 1)
    with path.open("a") as file:
        file.write('[9, 1, 0, [["delete", "/never"]]]\n')
    with pytest.raises(DamagedJournal, match="line 3: "), tree(path):
        pass
