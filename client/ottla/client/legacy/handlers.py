"""What users of the older clients pass in: messages, hooks of the producer, a rebalance listener.

Users implement `EventHandler`, `CallbackHandler` and `ConsumerRebalanceListener`. `producer` and
`send_thread` call the first two, the connector's two coordinations the third.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.client.core.types import TopicPartition
from ottla.client.legacy.message_sets import ByteBufferMessageSet, Message, MessageSet
from ottla.protocol.grouping import indexes_by_topic


class KeyedMessage(NamedTuple):
    """What `Producer.send` takes; key and message as the encoders like them."""

    topic: str
    message: Any
    key: Any = None
    part_key: Any = None
    """What the partition is chosen by, in the key's place; it is not sent."""

    @property
    def partition_key(self) -> Any:
        """What the partitioner is given; None lets any partition do."""
        return self.key if self.part_key is None else self.part_key


class ProducerData:
    """Kafka 0.7's: values for one topic, `ProducerData("orders", values)` or `ProducerData("orders", key,
    values)`. `values` is one value or a list of them. As in 0.7, the key chooses the partition and is not
    sent."""

    def __init__(self, topic: str, *key_and_values: Any) -> None:
        if not 1 <= len(key_and_values) <= 2:
            raise TypeError("ProducerData(topic, values) or ProducerData(topic, key, values)")
        self.topic = topic
        self.key = key_and_values[0] if len(key_and_values) == 2 else None
        self.values = _values(key_and_values[-1])

    def messages(self) -> list[KeyedMessage]:
        """As today's producer takes them."""
        return [KeyedMessage(self.topic, value, part_key=self.key) for value in self.values]


def keyed_messages(given: Sequence[Any]) -> list[KeyedMessage]:
    """Of the arguments of `Producer.send`. Raises TypeError."""
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
            found += keyed_messages(_not_text(list(each)))
        else:
            raise TypeError(
                f"{type(each).__name__} cannot be sent: give KeyedMessage, ProducerData, a list of these, "
                "or a topic and its messages"
            )
    return found


def _not_text(given: list[Any]) -> list[Any]:
    if given and isinstance(given[0], str):
        raise TypeError("a list of text has no topic: send(topic, messages)")
    return given


def _values(given: Any) -> list[Any]:
    """One value, or those of a list, a MessageSet or the ByteBufferMessageSet of an answer."""
    if isinstance(given, ByteBufferMessageSet):
        return [each.message for each in given]
    if isinstance(given, list | MessageSet) or (isinstance(given, tuple) and not isinstance(given, Message)):
        return list(given)
    return [given]


class EventHandler:
    """Dispatches batches: the producer's own encodes them, chooses partitions and sends. A class of its own
    takes them elsewhere, or first does something to them. It is made without arguments."""

    def init(self, settings: Mapping[str, object]) -> None:
        """Called once, before all else."""

    def handle(self, messages: Sequence[KeyedMessage]) -> None:
        """In sync mode an exception goes to the caller of `send`, in async mode to the log."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, after all else."""


class CallbackHandler:
    """Looks into the async producer's queue; each hook here leaves things as they are. `before_enqueue` and
    `after_enqueue` are called by whoever sends, the others by the thread that empties the queue."""

    def init(self, settings: Mapping[str, object]) -> None:
        """Called once, before all else."""

    def before_enqueue(self, message: KeyedMessage) -> KeyedMessage:
        """What is to enter the queue."""
        return message

    def after_enqueue(self, message: KeyedMessage, added: bool) -> None:
        """`added`: False when the queue was full."""

    def after_dequeuing_existing_data(self, message: KeyedMessage) -> Sequence[KeyedMessage]:
        """What is to enter the batch in the message's place: none, one or several."""
        return [message]

    def before_sending_data(self, messages: Sequence[KeyedMessage]) -> Sequence[KeyedMessage]:
        """What is to be encoded and sent of a batch. Of the producer's own event handler."""
        return messages

    def last_batch_before_close(self) -> Sequence[KeyedMessage]:
        """What is still to be sent with the last batch."""
        return []

    def close(self) -> None:
        """Called once, after all else."""


log = logging.getLogger(__name__)


class ConsumerRebalanceListener(Protocol):
    """Given to `ConsumerConnector.set_consumer_rebalance_listener`."""

    def before_releasing_partitions(self, partition_ownership: Mapping[str, set[int]]) -> None:
        """Called at the beginning of a rebalance, in a thread of the connector's, with the partitions that
        this consumer still owns, by topic. Reading has stopped, the streams give out nothing more that was
        there before, and `commit_offsets` still counts. An exception is logged."""
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
