"""`ottla transactions`: transactional ids, producer states of partitions, and hanging transactions.

As kafka-transactions.sh (KIP-664): a transaction hangs in a partition if it is open there, and no coordinator
has that partition in a transaction of its producer. It blocks the last stable offset until it is aborted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from ottla.cli.output import as_json, done, show, table
from ottla.cli.session import (
    Refused,
    Session,
    cluster_command,
    complete_topics,
)
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ProducerState, Results, TopicPartition, TransactionDescription
from ottla.client.errors import TransactionalIdNotFoundError

_TIMEOUT_MIN: Final = 15
"""The default of transaction.max.timeout.ms, in minutes."""
_BATCH: Final = 500
"""Partitions of one DescribeProducers request."""

_partition = click.option(
    "--partition", type=click.IntRange(min=0), help="A partition of the topic. Default: all."
)


@click.group(short_help="List, describe and abort transactions.")
def transactions() -> None:
    """Transactional ids, their transactions, and producer states of partitions."""


@transactions.command("list")
@click.option("--state", "states", multiple=True, help="Only in this state, as Ongoing.")
@click.option("--producer-id", "producer_ids", type=int, multiple=True, help="Only of this producer id.")
@click.option(
    "--longer-than", type=click.IntRange(min=0), metavar="MS", help="Only transactions open for longer."
)
@cluster_command
def list_(
    session: Session, states: tuple[str, ...], producer_ids: tuple[int, ...], longer_than: int | None
) -> None:
    """List transactional ids with their coordinators and states."""
    found = session.admin(
        lambda admin: admin.list_transactions(
            states=states, producer_ids=producer_ids, running_longer_than_ms=longer_than
        )
    ).raise_first()
    show(
        (
            {
                "transactional_id": each.transactional_id,
                "coordinator": broker,
                "producer_id": each.producer_id,
                "state": each.state,
            }
            for broker, listed in sorted(found.items())
            for each in sorted(listed, key=lambda each: each.transactional_id)
        ),
        session.output,
        nothing="no transactional ids",
    )


@transactions.command()
@click.argument("transactional_id")
@cluster_command
def describe(session: Session, transactional_id: str) -> None:
    """Describe a transactional id, and the partitions of its transaction."""
    found = session.admin(lambda admin: admin.describe_transactions([transactional_id]))[transactional_id]
    now_ms = int(time.time() * 1000)
    row = {
        "coordinator": found.coordinator.id,
        "transactional_id": transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms if found.start_ms >= 0 else None,
        "duration_ms": now_ms - found.start_ms if found.start_ms >= 0 else None,
        "partitions": [str(tp) for tp in sorted(found.partitions)],
    }
    if session.output == "json":
        as_json(row)
    else:
        table([row])


@transactions.command()
@click.argument("topic", shell_complete=complete_topics)
@_partition
@click.option("--broker", type=int, help="Query this replica. Default: the leaders.")
@cluster_command
def producers(session: Session, topic: str, partition: int | None, broker: int | None) -> None:
    """List the producer states of a topic's partitions."""

    async def query(admin: AdminClient) -> Results[TopicPartition, tuple[ProducerState, ...]]:
        asked = await _partitions(admin, topic, partition)
        return (await admin.describe_producers(asked, broker=broker)).raise_first()

    show(
        (
            {**_partition_fields(tp), **_producer(each)}
            for tp, found in sorted(session.admin(query).items())
            for each in sorted(found, key=lambda each: each.producer_id)
        ),
        session.output,
        nothing="no producers",
    )


def _partition_fields(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def _producer(state: ProducerState) -> dict[str, Any]:
    opened = state.transaction_start_offset
    return {
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "coordinator_epoch": state.coordinator_epoch,
        "last_sequence": state.last_sequence,
        "last_timestamp": state.last_timestamp_ms,
        "start_offset": opened if opened >= 0 else None,
    }


@transactions.command()
@click.argument("topic", required=False, shell_complete=complete_topics)
@_partition
@click.option("--broker", type=int, help="Query this replica, for its partitions only.")
@click.option(
    "--longer-than",
    type=click.IntRange(min=0),
    default=_TIMEOUT_MIN,
    show_default=True,
    metavar="MINUTES",
    help="Only transactions without a record for longer. Default: transaction.max.timeout.ms of Kafka.",
)
@cluster_command
def hanging(
    session: Session, topic: str | None, partition: int | None, broker: int | None, longer_than: int
) -> None:
    """Find transactions that no coordinator will end, in TOPIC, in a broker's partitions, or in all."""
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs a TOPIC")

    async def query(admin: AdminClient) -> list[tuple[TopicPartition, ProducerState]]:
        asked = await _partitions(admin, topic, partition, broker)
        oldest_ms = int(time.time() * 1000) - longer_than * 60_000
        candidates = [each async for each in _open_transactions(admin, asked, broker, oldest_ms)]
        if not candidates:
            return []
        listed = await admin.list_transactions(producer_ids={state.producer_id for _, state in candidates})
        ids = {
            each.producer_id: each.transactional_id
            for found in listed.raise_first().values()
            for each in found
        }
        described = await admin.describe_transactions(set(ids.values()))
        for error in described.errors.values():
            if not isinstance(error, TransactionalIdNotFoundError):
                raise error
        return list(hanging_transactions(candidates, ids, described))

    show(
        (
            {**_partition_fields(tp), **_producer(state)}
            for tp, state in sorted(session.admin(query), key=_sort_key)
        ),
        session.output,
        nothing="no hanging transactions",
    )


def _sort_key(found: tuple[TopicPartition, ProducerState]) -> tuple[TopicPartition, int]:
    return found[0], found[1].producer_id


def hanging_transactions(
    candidates: Iterable[tuple[TopicPartition, ProducerState]],
    transactional_ids: Mapping[int, str],
    described: Mapping[str, TransactionDescription],
) -> Iterator[tuple[TopicPartition, ProducerState]]:
    """The open transactions (by partition) to which no coordinator will write a marker.

    `transactional_ids`: by producer id. A coordinator's description has the partitions without a marker.
    """
    for tp, state in candidates:
        known = described.get(transactional_ids.get(state.producer_id, ""))
        if known is None or tp not in known.partitions:
            yield tp, state


async def _open_transactions(
    admin: AdminClient, asked: list[TopicPartition], broker: int | None, oldest_ms: int
) -> Any:
    """The open transactions without a record since `oldest_ms`."""
    for at in range(0, len(asked), _BATCH):
        found = (await admin.describe_producers(asked[at : at + _BATCH], broker=broker)).raise_first()
        for tp, states in found.items():
            for state in states:
                if state.transaction_start_offset >= 0 and state.last_timestamp_ms < oldest_ms:
                    yield tp, state


async def _partitions(
    admin: AdminClient, topic: str | None, partition: int | None, broker: int | None = None
) -> list[TopicPartition]:
    if topic is not None and partition is not None:
        return [TopicPartition(topic, partition)]
    described = await admin.describe_topics(None if topic is None else [topic])
    if topic is not None and topic not in described:
        raise Refused(f"there is no topic '{topic}'")
    return [
        TopicPartition(name, p.partition)
        for name, found in sorted(described.items())
        for p in found.partitions
        if broker is None or broker in p.replicas
    ]


@transactions.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=click.IntRange(min=0))
@click.option("--start-offset", type=click.IntRange(min=0), help="The first offset of the transaction.")
@click.option("--producer-id", type=int, help="The producer, with both epochs, instead of the offset.")
@click.option("--producer-epoch", type=int, help="See `ottla transactions producers`.")
@click.option("--coordinator-epoch", type=int, help="See `ottla transactions producers`.")
@cluster_command
def abort(
    session: Session,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a hanging transaction in one partition. Its records become invisible to read_committed
    consumers."""
    numbers = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("either --start-offset, or --producer-id and both epochs are required")
    if start_offset is None and None in numbers:
        raise click.UsageError("--producer-id needs --producer-epoch and --coordinator-epoch")
    if start_offset is not None and numbers != (None, None, None):
        raise click.UsageError("--start-offset excludes --producer-id and the epochs")
    tp = TopicPartition(topic, partition)

    async def work(admin: AdminClient) -> tuple[int, int, int]:
        chosen = producer_id, producer_epoch, coordinator_epoch
        if start_offset is not None:
            states = (await admin.describe_producers([tp]))[tp]
            state = next((s for s in states if s.transaction_start_offset == start_offset), None)
            if state is None:
                raise Refused(f"no transaction of {tp} begins at offset {start_offset}")
            # Without a marker so far, a producer has no coordinator epoch: Kafka's tool sends 0.
            chosen = state.producer_id, state.producer_epoch, max(0, state.coordinator_epoch)
        producer, epoch, coordinator = chosen
        assert producer is not None
        assert epoch is not None
        assert coordinator is not None
        await admin.abort_transaction(tp, producer, epoch, coordinator)
        return producer, epoch, coordinator

    ended, epoch, _ = session.admin(work)
    message = f"aborted the transaction of producer {ended} (epoch {epoch}) in {tp}"
    done(message, session.output, **_partition_fields(tp), producer_id=ended, producer_epoch=epoch)
