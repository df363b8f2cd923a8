"""Operators that compete for a Lease, in virtual time on the fake API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla_operator.kubernetes.api import ApiError
from ottla_operator.kubernetes.lease import DURATION_S, RENEW_DEADLINE_S, RETRY_S, Election
from tests.worlds.clocks import run_in_virtual_time
from tests.worlds.kubernetes_simulation import NAMESPACE, InMemoryApi, Item

NAME = "ottla-operator"


class Operators:
    """Candidates by name, on one API server."""

    def __init__(self) -> None:
        self.api = InMemoryApi()
        self.log: list[tuple[str, str]] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.elections: dict[str, Election] = {}

    def start(self, name: str) -> None:
        now = asyncio.get_running_loop().time
        election = Election(self.api, NAMESPACE, NAME, name, lambda: int(now() * 1000))
        self.elections[name] = election

        async def run() -> None:
            await election.acquire()
            self.log.append((name, "works"))
            await election.hold()
            self.log.append((name, "stops"))

        self.tasks[name] = asyncio.ensure_future(run())

    async def kill(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    @property
    def spec(self) -> Item:
        spec: Item = self.api.items["Lease", NAME]["spec"]
        return spec


def scenario(run: Callable[[Operators], Awaitable[None]]) -> None:
    async def work() -> None:
        operators = Operators()
        try:
            await run(operators)
        finally:
            for name in operators.tasks:
                await operators.kill(name)

    run_in_virtual_time(work())


def test_one_operator_works_and_the_other_stands_by() -> None:
    async def run(operators: Operators) -> None:
        operators.start("a")
        operators.start("b")
        await asyncio.sleep(600)
        assert operators.log == [("a", "works")]
        assert operators.spec["holderIdentity"] == "a"
        assert operators.spec["leaseTransitions"] == 0

    scenario(run)


def test_the_standby_takes_over_after_the_duration_of_a_killed_holder() -> None:
    async def run(operators: Operators) -> None:
        operators.start("a")
        operators.start("b")
        await asyncio.sleep(60)
        await operators.kill("a")
        await asyncio.sleep(DURATION_S - RETRY_S - 1)
        assert operators.log == [("a", "works")]
        await asyncio.sleep(2 * RETRY_S + 1)
        assert operators.log == [("a", "works"), ("b", "works")]
        assert operators.spec["leaseTransitions"] == 1

    scenario(run)


def test_a_released_lease_is_taken_at_once() -> None:
    async def run(operators: Operators) -> None:
        operators.start("a")
        operators.start("b")
        await asyncio.sleep(60)
        await operators.kill("a")
        await operators.elections["a"].release()
        assert operators.spec["holderIdentity"] == ""
        await asyncio.sleep(RETRY_S)
        assert operators.log == [("a", "works"), ("b", "works")]

    scenario(run)


def test_a_holder_without_the_api_server_stops_before_another_may_start() -> None:
    async def run(operators: Operators) -> None:
        operators.start("a")
        await asyncio.sleep(60)
        operators.api.fail = lambda verb, kind, name: ApiError(0, "Unreachable", "no answer")
        await asyncio.sleep(RENEW_DEADLINE_S + RETRY_S)
        assert operators.log == [("a", "works"), ("a", "stops")]
        assert RENEW_DEADLINE_S + RETRY_S < DURATION_S

    scenario(run)


def test_a_short_outage_of_the_api_server_does_not_end_the_holder() -> None:
    async def run(operators: Operators) -> None:
        operators.start("a")
        await asyncio.sleep(60)
        operators.api.fail = lambda verb, kind, name: ApiError(500, "InternalError", "etcd has no leader")
        await asyncio.sleep(RENEW_DEADLINE_S - RETRY_S)
        operators.api.fail = lambda verb, kind, name: None
        await asyncio.sleep(600)
        assert operators.log == [("a", "works")]

    scenario(run)


def test_a_holder_whose_lease_another_has_taken_stops() -> None:
    async def run(operators: Operators) -> None:
        operators.start("a")
        await asyncio.sleep(60)
        await operators.api.merge("Lease", NAMESPACE, NAME, {"spec": {"holderIdentity": "b"}})
        await asyncio.sleep(2 * RETRY_S)
        assert operators.log == [("a", "works"), ("a", "stops")]

    scenario(run)


def test_one_of_two_operators_that_see_a_free_lease_gets_it() -> None:
    async def run(operators: Operators) -> None:
        operators.api.put("Lease", NAME, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
        for name in "abcde":
            operators.start(name)
        await asyncio.sleep(600)
        assert len(operators.log) == 1

    scenario(run)
