"""The dependency graph of the list-append workload finds cycles, and only cycles."""

from __future__ import annotations

from collections import defaultdict

import pytest

from ottla.simulation.workloads.list_append import Edge, add_write_edges, explain, find_cycle


def graph(*pairs: str) -> dict[str, list[Edge]]:
    edges: defaultdict[str, list[Edge]] = defaultdict(list)
    for first, second in pairs:
        edges[first].append(Edge("wr", second, f"{second} read {first}"))
    return dict(edges)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (("ab", "bc", "ac"), ""),
        (("ab", "cb", "bd", "cd"), ""),
        (("ab", "bd", "ac", "cd", "db"), "d read b (wr); b read d (wr)"),
        (("ab", "ba"), "b read a (wr); a read b (wr)"),
    ],
)
def test_a_cycle_is_found_and_explained(pairs: tuple[str, ...], expected: str) -> None:
    cycle = find_cycle(graph(*pairs))
    assert (explain(cycle) if cycle else "") == (f"a cycle: {expected}" if expected else "")


def test_transactions_that_are_open_at_one_time_are_not_ordered() -> None:
    edges: defaultdict[str, list[Edge]] = defaultdict(list)
    add_write_edges(edges, 0, {"a": (0, 3), "b": (1, 4), "c": (5, 6), "d": (7, 8)})
    assert {name: [edge.to for edge in each] for name, each in edges.items()} == {
        "a": ["c"],
        "b": ["c"],
        "c": ["d"],
    }
