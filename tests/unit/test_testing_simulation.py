"""ottla.testing.simulation: the sample and other tests in pytest runs of their own (pytester); the API."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from ottla.client import Consumer, Producer
from ottla.client.errors import ClientError
from ottla.testing.simulation import (
    ALL_FAULTS,
    ConditionNotMet,
    Faults,
    SimulatedCluster,
    SimulationFailed,
    simulate,
    simulated,
)

pytestmark = pytest.mark.budget(10)

pytest_plugins = ["pytester"]

SAMPLES = Path(__file__).parents[2] / "docs/samples"
CARELESS_SEED = 4
SEEDS = 50
AT_ONCE = 50


# --- the sample ---


@pytest.fixture
def sample(pytester: pytest.Pytester) -> pytest.Pytester:
    for name in ("charging.py", "test_charging.py"):
        (pytester.path / name).write_bytes((SAMPLES / name).read_bytes())
    return pytester


def test_a_seed_shows_the_bug_of_the_careless_sample(sample: pytest.Pytester) -> None:
    result = sample.runpytest_subprocess("test_charging.py", "--ottla-seed", str(CARELESS_SEED))
    result.assert_outcomes(passed=1, failed=1)
    name = "test_charging.py::test_each_order_is_charged_carelessly"
    shown = result.stdout.str()
    assert "not true after 60 virtual seconds: await cluster.until(" in shown
    assert f"seed {CARELESS_SEED} fails, with " in shown
    assert re.search(r"charging-[ab]\s+is killed", shown)
    assert f"to reproduce: pytest {name} --ottla-seed {CARELESS_SEED}" in shown
    assert "Warning" not in shown


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_corrected_sample_passes(sample: pytest.Pytester, first: int) -> None:
    result = sample.runpytest_subprocess(
        "test_charging.py::test_each_order_is_charged", "--ottla-seed", f"{first}-{first + AT_ONCE - 1}"
    )
    result.assert_outcomes(passed=AT_ONCE)
    assert "Warning" not in result.stdout.str()


def test_the_documents_example_runs(pytester: pytest.Pytester) -> None:
    text = (SAMPLES.parent / "guides/testing.md").read_text()
    python = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    pytester.makepyfile("\n".join(block for block in python if "ottla.testing.simulation" in block))
    pytester.runpytest_subprocess("--ottla-seed", "0-2").assert_outcomes(passed=3)


# --- pytest ---


def test_a_test_runs_once_for_each_seed_with_its_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from ottla.testing.simulation import simulated

        class TestOrders:
            @pytest.mark.parametrize("partitions", [1, 2])
            @simulated(seeds=[3, 5], brokers=1, faults=None)
            async def test_topic(self, cluster, partitions, tmp_path):
                assert cluster.seed in (3, 5) and tmp_path.exists()
                await cluster.create_topic("orders", partitions)
                assert await cluster.records("orders") == []

            @simulated(seeds=[3], brokers=1, faults=None)
            async def test_skipped(self, cluster):
                pytest.skip("for a reason")
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=4, skipped=1)
    pytester.runpytest_subprocess("-q", "--ottla-seed", "3-4", "-k", "skipped").assert_outcomes(skipped=2)


def test_each_further_failing_seed_has_one_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)  # there pytest's summary has the whole messages
    pytester.makepyfile(
        test_x="""
        from ottla.testing.simulation import simulated

        @simulated(seeds=range(3), brokers=1, faults=None)
        async def test_wrong(cluster):
            assert cluster.seed < 1
        """
    )
    shown = pytester.runpytest_subprocess("-q").stdout.str()
    assert shown.count("The timeline:") == 1
    assert "assert 1 < 1" in shown
    assert "seed 2 fails, too: pytest test_x.py::test_wrong --ottla-seed 2" in shown
    assert "asyncio/" not in shown


def test_only_a_coroutine_function_with_a_cluster_can_be_simulated() -> None:
    with pytest.raises(TypeError, match="must be a coroutine function with a parameter `cluster`"):

        @simulated()
        async def test() -> None:
            """No cluster."""


# --- the cluster ---


async def send(cluster: SimulatedCluster, count: int) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(count):
            await producer.send_and_wait("numbers", b"%d" % number)
            await asyncio.sleep(0.5)


def test_a_seed_gives_one_trace() -> None:
    async def test(cluster: SimulatedCluster) -> None:
        await cluster.create_topic("numbers", 3)
        cluster.application("sender", lambda: send(cluster, 20), restart_on=(ClientError,))
        await cluster.until(lambda: cluster.applications["sender"].finished)
        await asyncio.sleep(random.random())

    one, again, other = (simulate(test, seed, faults=ALL_FAULTS) for seed in (1, 1, 2))
    assert one.faults
    assert one.trace == again.trace != other.trace


def test_an_application_is_killed_at_an_await_and_starts_again() -> None:
    ended: list[str] = []
    starts: list[float] = []

    async def main(cluster: SimulatedCluster) -> None:
        starts.append(cluster.time())
        try:
            await asyncio.sleep(3.0)
        finally:
            ended.append("finally")

    async def test(cluster: SimulatedCluster) -> None:
        application = cluster.application("app", lambda: main(cluster))
        await asyncio.sleep(2.0)
        application.kill()
        assert ended == []
        await cluster.until(lambda: application.finished)
        assert application.starts == 2
        assert starts[1] - starts[0] == pytest.approx(3.0)
        assert ended == ["finally"]

    simulate(test, 1, brokers=1)


def test_an_application_is_paused_and_stopped() -> None:
    async def tick(ticks: list[float]) -> None:
        while True:
            ticks.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1.0)

    async def test(cluster: SimulatedCluster) -> None:
        ticks: list[float] = []
        application = cluster.application("app", lambda: tick(ticks))
        await asyncio.sleep(2.5)
        application.pause(10.0)
        await asyncio.sleep(9.0)
        assert len(ticks) == 3
        await asyncio.sleep(2.0)
        assert len(ticks) == 4
        await application.stop()
        assert application.finished
        await asyncio.sleep(5.0)
        assert len(ticks) == 4

    simulate(test, 1, brokers=1)


def test_heal_ends_the_faults() -> None:
    async def test(cluster: SimulatedCluster) -> None:
        await cluster.create_topic("numbers")
        await asyncio.sleep(5.0)
        await cluster.heal()
        await send(cluster, 3)
        assert [record.value for record in await cluster.records("numbers")] == [b"0", b"1", b"2"]

    simulate(test, 3, faults=Faults(kill=0.5, kill_all=0.1, cut=0.5, zookeeper=0.5))


def test_all_faults_of_applications() -> None:
    async def copy(cluster: SimulatedCluster, seen: set[bytes]) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            group_id="copy",
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
        ) as consumer:
            consumer.subscribe(["numbers"])
            async for record in consumer:
                seen.add(record.value)

    async def test(cluster: SimulatedCluster) -> None:
        await cluster.create_topic("numbers", 2)
        seen: set[bytes] = set()
        cluster.application("copy", lambda: copy(cluster, seen), restart_on=(ClientError,))
        await cluster.run(send(cluster, 20))
        await cluster.until(lambda: len(seen) == 20)

    faults = Faults(kill_application=0.5, pause_application=0.5, cut_application=0.5)
    executed = {fault.kind for seed in range(5) for fault in simulate(test, seed, faults=faults).faults}
    assert executed == {"kill application", "pause application", "cut application"}


# --- failures ---


def test_an_error_of_an_application_fails_the_test() -> None:
    async def main() -> None:
        await asyncio.sleep(1.0)
        raise ZeroDivisionError("in the application")

    async def test(cluster: SimulatedCluster) -> None:
        cluster.application("app", main)
        await asyncio.sleep(100.0)

    with pytest.raises(ZeroDivisionError, match="in the application") as failure:
        simulate(test, 1, brokers=1)
    assert "app          has failed: ZeroDivisionError" in "\n".join(failure.value.__notes__)


def test_an_application_restarts_after_the_errors_that_were_named() -> None:
    attempts: list[int] = []

    async def main() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError
        return "done"

    async def test(cluster: SimulatedCluster) -> None:
        application = cluster.application("app", main, restart_on=(OSError,))
        await cluster.until(lambda: application.finished)
        assert application.result == "done"

    simulate(test, 1, brokers=1)


def test_a_deadlock_names_what_waits() -> None:
    async def wait_for_ever(event: asyncio.Event) -> None:
        await event.wait()

    async def test(cluster: SimulatedCluster) -> None:
        event = asyncio.Event()
        cluster.application("waiter", lambda: wait_for_ever(event))
        await event.wait()

    with pytest.raises(SimulationFailed, match="has not ended after 50 virtual seconds") as failure:
        simulate(test, 1, brokers=1, timeout_s=50.0)
    assert re.search(
        r"waiter: task waiter, .*wait_for_ever \(.*test_testing_simulation.py:\d+\)", str(failure.value)
    )


def test_a_loop_that_never_sleeps_fails() -> None:
    async def test(cluster: SimulatedCluster) -> None:
        while cluster.time() < 1.0:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(SimulationFailed, match="Livelock"):
        simulate(test, 1, brokers=1)


def test_an_error_that_nothing_handles_fails_the_test() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("in a task")

    async def test(cluster: SimulatedCluster) -> None:
        background = asyncio.create_task(fail())
        await asyncio.sleep(1.0)
        del background

    with pytest.raises(SimulationFailed, match=r"Task exception was never retrieved.*in a task"):
        simulate(test, 1, brokers=1)


def test_an_error_in_a_killed_application_is_nobodys() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("in a task")

    async def main() -> None:
        background = asyncio.create_task(fail())
        await asyncio.sleep(2.0)
        with pytest.raises(ZeroDivisionError):
            await background

    async def test(cluster: SimulatedCluster) -> None:
        application = cluster.application("app", main)
        await asyncio.sleep(1.0)
        application.kill()
        await cluster.until(lambda: application.finished)
        await asyncio.sleep(11.0)

    simulate(test, 1, brokers=1)


def test_a_condition_that_stays_false_is_shown() -> None:
    async def test(cluster: SimulatedCluster) -> None:
        await cluster.until(lambda: cluster.time() < 0, timeout_s=10.0)

    with pytest.raises(ConditionNotMet, match=r"not true after 10 virtual seconds: .*cluster.time"):
        simulate(test, 1, brokers=1)


def test_the_modules_random_numbers_follow_from_the_seed_and_come_back() -> None:
    drawn: list[float] = []

    async def test(cluster: SimulatedCluster) -> None:
        drawn.append(random.random())

    random.seed(7)
    expected = random.Random(7).random()
    simulate(test, 1, brokers=1)
    simulate(test, 1, brokers=1)
    assert drawn[0] == drawn[1]
    assert random.random() == expected
