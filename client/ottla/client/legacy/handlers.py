"""Messages of the legacy producer, and the classes that applications implement: `EventHandler`,
`CallbackHandler` and `ConsumerRebalanceListener`.

`producer` calls the first two, the connector's coordinations the third.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.client.core.types import TopicPartition
from ottla.client.legacy.message_sets import ByteBufferMessageSet, Message, MessageSet
from ottla.protocol.topics import indexes_by_topic


class KeyedMessage(NamedTuple):
    """A message for `Producer.send`, with key and message in the types of the encoders."""

    topic: str
    message: Any
    key: Any = None
    part_key: Any = None
    """The key for the partitioner, instead of `key`; it is not sent."""

    @property
    def partition_key(self) -> Any:
        """The key for the partitioner; None: any partition."""
        return self.key if self.part_key is None else self.part_key


class ProducerData:
    """Kafka 0.7's values for a topic: `ProducerData("orders", values)`, `ProducerData("orders", key,
    values)`.

    `values` is one value or a list. As in 0.7, the key chooses the partition and is not sent."""

    def __init__(self, topic: str, *key_and_values: Any) -> None:
        if not 1 <= len(key_and_values) <= 2:
            raise TypeError("ProducerData(topic, values) or ProducerData(topic, key, values)")
        self.topic = topic
        self.key = key_and_values[0] if len(key_and_values) == 2 else None
        self.values = _values(key_and_values[-1])

    def messages(self) -> list[KeyedMessage]:
        """The values as KeyedMessages."""
        return [KeyedMessage(self.topic, value, part_key=self.key) for value in self.values]


def keyed_messages(given: Sequence[Any]) -> list[KeyedMessage]:
    """The KeyedMessages of the arguments of `Producer.send`. Raises TypeError."""
    if given and isinstance(given[0], str):
        if len(given) != 2:
            raise TypeError("send(topic, messages)")
        return ProducerData(*given).messages()
    found: list[KeyedMessage] = []
    for each in given:
        if isinstance(each, KeyedMessage):
            found.append(each)
        elif isinstance(each, ProducerData):
            found += each.messages()
        elif isinstance(each, Iterable) and not isinstance(each, str | bytes | Message):
            found += keyed_messages(_check_not_strings(list(each)))
        else:
            raise TypeError(
                f"{type(each).__name__} cannot be sent: must be KeyedMessage, ProducerData, a list of these, "
                "or a topic and its messages"
            )
    return found


def _check_not_strings(given: list[Any]) -> list[Any]:
    if given and isinstance(given[0], str):
        raise TypeError("a list of strings has no topic: use send(topic, messages)")
    return given


def _values(given: Any) -> list[Any]:
    """The values of a list, a MessageSet or a ByteBufferMessageSet; or the one value."""
    if isinstance(given, ByteBufferMessageSet):
        return [each.message for each in given]
    if isinstance(given, list | MessageSet) or (isinstance(given, tuple) and not isinstance(given, Message)):
        return list(given)
    return [given]


class EventHandler:
    """Sends batches of messages. The default encodes them, chooses partitions and sends them to brokers; an
    application may implement its own, with a constructor without arguments."""

    def init(self, settings: Mapping[str, object]) -> None:
        """Called once, before any other method."""

    def handle(self, messages: Sequence[KeyedMessage]) -> None:
        """Send a batch. In sync mode the caller of `send` gets an exception, in async mode it is logged."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, after all other methods."""


class CallbackHandler:
    """Hooks of the async producer's queue; the defaults change nothing. `before_enqueue` and `after_enqueue`
    are called in the thread of `send`, the others in the send thread."""

    def init(self, settings: Mapping[str, object]) -> None:
        """Called once, before any other method."""

    def before_enqueue(self, message: KeyedMessage) -> KeyedMessage:
        """Returns the message to queue."""
        return message

    def after_enqueue(self, message: KeyedMessage, added: bool) -> None:
        """Called after a message was queued; `added` is False if the queue was full."""

    def after_dequeuing_existing_data(self, message: KeyedMessage) -> Sequence[KeyedMessage]:
        """Returns the messages to add to the batch instead of a dequeued message."""
        return [message]

    def before_sending_data(self, messages: Sequence[KeyedMessage]) -> Sequence[KeyedMessage]:
        """Returns the messages of a batch to encode and send. Called by the default event handler only."""
        return messages

    def last_batch_before_close(self) -> Sequence[KeyedMessage]:
        """Returns messages to add to the last batch."""
        return []

    def close(self) -> None:
        """Called once, after all other methods."""


log = logging.getLogger(__name__)


class ConsumerRebalanceListener(Protocol):
    """The listener of `ConsumerConnector.set_consumer_rebalance_listener`."""

    def before_releasing_partitions(self, partition_ownership: Mapping[str, set[int]]) -> None:
        """Called at the beginning of a rebalance, in a thread of the connector, with the partitions that the
        consumer still owns, by topic. Fetching has stopped and the streams are cleared; `commit_offsets` can
        be called. An exception is logged."""
        ...


def call_listener(listener: ConsumerRebalanceListener | None, owned: Iterable[TopicPartition]) -> None:
    """Call the listener with the partitions of this consumer, by topic; log its exception."""
    if listener is None:
        return
    ownership = {topic: set(indexes) for topic, indexes in indexes_by_topic(owned).items()}
    try:
        listener.before_releasing_partitions(ownership)
    except Exception:
        log.exception("before_releasing_partitions failed")
