"""Producer and Consumer, cancelled at every await they have: nothing is lost, left over, or stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.testing import DevBroker
from tests.judges.cancellation import every_await

STOP_S = 30.0
"""Of a machine that does other things. A consumer's session lasts longer."""


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker() as running:
        yield running


async def nothing_is_left() -> None:
    """No task but the test's own, once what was closed has had its turn."""
    for _ in range(500):
        if asyncio.all_tasks() == {asyncio.current_task()}:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"tasks are left: {asyncio.all_tasks()}")


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_a_producer_loses_no_acknowledged_record(broker: DevBroker, transactional: bool) -> None:
    topic = f"produced-{transactional}"
    broker.create_topic(topic)

    async def scenario() -> None:
        cancelled = 0
        written: dict[int, bytes] = {}
        producer: Producer

        async def work(at: int) -> None:
            nonlocal producer
            settings = {"transactional_id": topic} if transactional else {}
            producer = Producer(bootstrap_servers=broker.bootstrap, **settings)
            await producer.start()
            if not transactional:
                for number in range(3):
                    value = f"{at}-{number}".encode()
                    written[(await producer.send_and_wait(topic, value)).offset] = value
                await producer.send(topic, f"{at}-flushed".encode())
                await producer.flush()
            else:
                for number in range(3):
                    value = f"{at}-{number}".encode()
                    async with producer.transaction():
                        metadata = await producer.send_and_wait(topic, value)
                    written[metadata.offset] = value
            await producer.stop()

        async for at in every_await(work):
            async with asyncio.timeout(STOP_S):
                await producer.stop()
            await nothing_is_left()
            cancelled = at
        assert cancelled >= 3, "it was hardly ever cancelled"
        found = {record.offset: record.value for record in broker.records(topic)}
        assert written.items() <= found.items()
        assert written
        values = list(found.values())
        assert len(set(values)) == len(values), "an idempotent producer writes nothing twice"

    asyncio.run(scenario())


def test_a_producer_whose_send_was_cancelled_keeps_the_order(broker: DevBroker) -> None:
    """Of sends that are cancelled in turn, on one producer, the others lose nothing and keep their order."""
    topic = "gone-on"
    broker.create_topic(topic)

    async def scenario() -> None:
        async with Producer(bootstrap_servers=broker.bootstrap) as producer:
            sent: list[bytes] = []

            async def work(at: int) -> None:
                for number in range(3):
                    await producer.send_and_wait(topic, f"{at} may be {number}".encode())
                await producer.send(topic, f"{at} may be flushed".encode())
                await producer.flush()

            async for at in every_await(work):
                value = f"{at} must be".encode()
                await producer.send_and_wait(topic, value)
                sent.append(value)
        found = [record.value for record in broker.records(topic)]
        assert [value for value in found if value in sent] == sent
        assert len(sent) > 2

    asyncio.run(scenario())


def test_a_consumer_that_is_cancelled_at_any_point_does_not_disturb_its_group(broker: DevBroker) -> None:
    """What it gave out and had not committed comes again; its successor need not wait for its session."""
    topic, count = "consumed", 5
    broker.create_topic(topic)

    async def scenario() -> None:
        async with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(count):
                await producer.send_and_wait(topic, str(number).encode())
        consumer: Consumer
        seen: list[int] = []

        def made(group: str) -> Consumer:
            return Consumer(
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=120_000,
            )

        async def work(at: int) -> None:
            nonlocal consumer
            seen.clear()
            consumer = made(f"group-{at}")
            await consumer.start()
            consumer.subscribe([topic])
            while len(seen) < count:
                record = await consumer.getone()
                seen.append(record.offset)
                await consumer.commit()
            await consumer.stop()

        async for at in every_await(work):
            async with asyncio.timeout(STOP_S):
                await consumer.stop()
            await nothing_is_left()
            async with asyncio.timeout(STOP_S), made(f"group-{at}") as successor:
                successor.subscribe([topic])
                rest: list[int] = []
                while not rest or rest[-1] < count - 1:
                    if len(seen) == count:
                        break
                    rest.append((await successor.getone()).offset)
            assert sorted({*seen, *rest}) == list(range(count))
        assert at >= 10, "joining a group alone takes more awaits"

    asyncio.run(scenario())
