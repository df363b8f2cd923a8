"""The producer of Kafka 0.8: sync, or async with a queue and a thread that sends batches.

    with Producer(metadata_broker_list="127.0.0.1:9092", request_required_acks=-1) as producer:
        producer.send(KeyedMessage("orders", b"one", key=b"customer-7"))

It uses the current blocking producer, which finds leaders, builds batches and retries. Invariants: messages
of a partition keep the order of `send`; a sync `send` returns when all messages are acknowledged, or raises
FailedToSendMessageError with the others. As in 0.8, request.required.acks is 0 by default: brokers
acknowledge nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.blocking_producer import Producer as BlockingProducer
from ottla.client.core.types import RecordMetadata
from ottla.client.errors import ClientError, RequestTimedOutError
from ottla.client.legacy import encoders
from ottla.client.legacy.configs import ProducerConfig
from ottla.client.legacy.errors import FailedToSendMessageError, ProducerClosedError, QueueFullError
from ottla.client.legacy.handlers import CallbackHandler, EventHandler, KeyedMessage, keyed_messages
from ottla.client.legacy.message_sets import Message

log = logging.getLogger(__name__)

_NEVER: Final = float("inf")
_SHUTDOWN: Final = KeyedMessage("", None)
"""Ends the thread; compared by identity."""


class Producer:
    """The legacy producer. Threads may share it; their sync calls of `send` run one after the other."""

    def __init__(
        self,
        settings: Mapping[str, object] | ProducerConfig | None = None,
        /,
        *,
        event_handler: EventHandler | None = None,
        **keywords: object,
    ) -> None:
        """0.8's dotted keys in a mapping, or keywords with underscores. `event_handler` overrides
        event.handler. Raises ConfigError; ClientError if zookeeper.connect has no brokers."""
        config = settings if isinstance(settings, ProducerConfig) else ProducerConfig.of(settings, **keywords)
        self.config = config
        written = {name.replace("_", "."): value for name, value in keywords.items()}
        given = {**(settings if isinstance(settings, Mapping) else {}), **written}
        callbacks: CallbackHandler | None = None
        if config.callback_handler is not None:
            callbacks = _handler("callback.handler", config.callback_handler, "before_enqueue", given)
        handler: Any = event_handler if event_handler is not None else config.event_handler
        if handler is None:
            self._handler: EventHandler = DefaultEventHandler(config, given, callbacks)
        else:
            self._handler = _handler("event.handler", handler, "handle", given)
        self._lock = threading.Lock()
        self._closed = False
        self._thread: ProducerSendThread | None = None
        if config.producer_type == "async":
            self._thread = ProducerSendThread(config, self._handler, callbacks)

    def send(self, *given: Any) -> None:
        """Send messages and wait for the acknowledgements (sync), or queue them (async).

        Takes any number of KeyedMessage and ProducerData, lists of them, or a topic and its messages:
        `send("orders", MessageSet(Message(b"one")))`. Raises FailedToSendMessageError, SerializationError,
        QueueFullError, ProducerClosedError, and TypeError for other arguments."""
        messages = keyed_messages(given)
        if self._thread is not None:
            if self._closed:
                raise ProducerClosedError("the producer is closed")
            self._thread.put(messages)
            return
        with self._lock:
            if self._closed:
                raise ProducerClosedError("the producer is closed")
            self._handler.handle(messages)

    def close(self) -> None:
        """Send the queued messages, and close."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None:
            self._thread.stop()
        self._handler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handler(key: str, given: object, method: str, settings: Mapping[str, object]) -> Any:
    handler = encoders.create_object(key, given, method, functions=False)
    handler.init(settings)
    return handler


class ProducerSendThread:
    """The queue of the async producer, and the thread that sends its messages in batches.

    Messages are sent in the order in which they were queued, at most batch.num.messages at a time, and at the
    latest after queue.buffering.max.ms. A batch that fails is logged and dropped, as in Kafka 0.8. Without
    `stop`, queued messages are lost when the interpreter ends.
    """

    def __init__(
        self, config: ProducerConfig, handler: EventHandler, callbacks: CallbackHandler | None
    ) -> None:
        self._config = config
        self._handler = handler
        self._callbacks = callbacks
        self._queue: queue.Queue[KeyedMessage] = queue.Queue(config.queue_buffering_max_messages)
        name = f"ProducerSendThread-{config.client_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, messages: Sequence[KeyedMessage]) -> None:
        """Queue messages. Raises QueueFullError after queue.enqueue.timeout.ms; earlier messages are
        queued."""
        for original in messages:
            message = original if self._callbacks is None else self._callbacks.before_enqueue(original)
            added = self._offer(message)
            if self._callbacks is not None:
                self._callbacks.after_enqueue(message, added)
            if not added:
                limit = self._config.queue_buffering_max_messages
                raise QueueFullError(
                    f"{message.topic}: the queue has queue.buffering.max.messages={limit} messages"
                )

    def _offer(self, message: KeyedMessage) -> bool:
        timeout_ms = self._config.queue_enqueue_timeout_ms
        try:
            self._queue.put(message, timeout_ms != 0, None if timeout_ms < 0 else timeout_ms / 1000)
        except queue.Full:
            return False
        return True

    def stop(self) -> None:
        """Send the queued messages and end the thread."""
        self._queue.put(_SHUTDOWN)
        self._thread.join()
        if self._callbacks is not None:
            self._callbacks.close()

    def _run(self) -> None:
        wait_s = self._config.queue_buffering_max_ms / 1000
        batch: list[KeyedMessage] = []
        until = 0.0
        while True:
            try:
                message = self._queue.get(timeout=max(0.0, until - time.monotonic()) if batch else None)
            except queue.Empty:
                self._handle(batch)
                batch = []
                continue
            if message is _SHUTDOWN:
                break
            if not batch:
                until = time.monotonic() + wait_s
            batch += self._dequeued(message)
            if len(batch) >= self._config.batch_num_messages:
                self._handle(batch)
                batch = []
        self._handle(batch + self._last_batch())

    def _dequeued(self, message: KeyedMessage) -> Sequence[KeyedMessage]:
        if self._callbacks is not None:
            try:
                return self._callbacks.after_dequeuing_existing_data(message)
            except Exception:
                log.exception("after_dequeuing_existing_data failed; the message is sent unchanged")
        return (message,)

    def _last_batch(self) -> list[KeyedMessage]:
        if self._callbacks is not None:
            try:
                return list(self._callbacks.last_batch_before_close())
            except Exception:
                log.exception("last_batch_before_close failed")
        return []

    def _handle(self, batch: Sequence[KeyedMessage]) -> None:
        if not batch:
            return
        try:
            self._handler.handle(batch)
        except Exception:
            log.exception("a batch of %d messages was not sent", len(batch))


class DefaultEventHandler(EventHandler):
    """Encodes messages, chooses partitions, sends, and waits for the results. One thread at a time."""

    def __init__(
        self, config: ProducerConfig, settings: Mapping[str, object], callbacks: CallbackHandler | None
    ) -> None:
        """Reads brokers from ZooKeeper if zookeeper.connect is set. Raises ConfigError, ClientError."""
        if config.zookeeper_connect is not None:
            # Imports kazoo.
            from ottla.client.legacy.consumer_registry import read_brokers

            config = replace(config, metadata_broker_list=read_brokers(config), zookeeper_connect=None)
        self._config = config
        self._callbacks = callbacks
        key_class = config.key_serializer_class or config.serializer_class
        self._encode = encoders.create_encoder("serializer.class", config.serializer_class, settings)
        self._encode_key = encoders.create_encoder("key.serializer.class", key_class, settings)
        partitioner = encoders.create_object(
            "partitioner.class", config.partitioner_class, "partition", settings
        )
        self._choose = getattr(partitioner, "partition", partitioner)
        self._producers: dict[str, BlockingProducer] = {}
        """By codec, since compressed.topics may exclude topics."""
        self._counts: dict[str, tuple[int, float]] = {}
        """(number of partitions, time of the next refresh) by topic."""
        self._sticky_until: dict[str, float] = {}
        """The time until which messages without a key go to one partition, by topic."""

    def handle(self, messages: Sequence[KeyedMessage]) -> None:
        if self._callbacks is not None:
            messages = self._callbacks.before_sending_data(messages)
        encoded = [(message, self._encoded(message)) for message in messages]
        sent: list[tuple[KeyedMessage, Future[RecordMetadata]]] = []
        used: set[BlockingProducer] = set()
        failed: list[tuple[KeyedMessage, BaseException]] = []
        unknown: dict[str, BaseException] = {}
        for message, found in encoded:
            if message.topic in unknown:
                failed.append((message, unknown[message.topic]))
                continue
            producer = self._producer(message.topic)
            try:
                partition = self._partition(message, found, producer)
                future = producer.send(
                    message.topic,
                    found.payload,
                    found.key,
                    partition=partition,
                    timestamp_ms=None if found.timestamp_ms < 0 else found.timestamp_ms,
                )
                sent.append((message, future))
            except RequestTimedOutError as problem:  # the next message of the topic would time out, too
                failed.append((message, problem))
                unknown[message.topic] = problem
            except ClientError as problem:
                failed.append((message, problem))
            used.add(producer)
        for producer in used:
            producer.flush()
        for message, future in sent:
            error = future.exception()
            if error is not None:
                failed.append((message, error))
        if failed:
            for message, _ in failed:
                self._counts.pop(message.topic, None)
                self._sticky_until[message.topic] = -_NEVER
            retries = self._config.message_send_max_retries
            raise FailedToSendMessageError(
                f"{len(failed)} of {len(messages)} messages were not delivered after {retries} retries; "
                f"{failed[0][0].topic}: {failed[0][1]}",
                failed,
            ) from failed[0][1]

    def _encoded(self, message: KeyedMessage) -> Message:
        given = message.message
        found = given if isinstance(given, Message) else self._encode(given)
        return found if message.key is None else found._replace(key=self._encode_key(message.key).payload)

    def _partition(self, message: KeyedMessage, encoded: Message, producer: BlockingProducer) -> int | None:
        """The partition of a message; None without a key: a random partition with a leader until
        topic.metadata.refresh.interval.ms have passed or a delivery fails, as in 0.8.2. Raises
        ClientError."""
        key = encoded.key if message.partition_key is None else message.partition_key
        now = time.monotonic()
        if key is None:
            sticky_until = self._sticky_until.get(message.topic)
            if sticky_until is None or now >= sticky_until:
                self._sticky_until[message.topic] = self._next_refresh(now)
                if sticky_until is not None:
                    producer.leave_partition(message.topic)
            return None
        count, until = self._counts.get(message.topic, (0, 0.0))
        if now >= until:
            count = producer.partitions_for(message.topic)
            self._counts[message.topic] = count, self._next_refresh(now)
        partition: int = self._choose(key, count)
        if not 0 <= partition < count:
            raise ClientError(
                f"{message.topic} has partitions 0 to {count - 1}; the partitioner returned {partition}"
            )
        return partition

    def _next_refresh(self, now: float) -> float:
        """The time of the next metadata refresh, in seconds of the monotonic clock."""
        refresh_ms = self._config.topic_metadata_refresh_interval_ms
        return _NEVER if refresh_ms < 0 else now + refresh_ms / 1000

    def _producer(self, topic: str) -> BlockingProducer:
        config = self._config
        chosen = not config.compressed_topics or topic in config.compressed_topics
        codec = config.compression_codec if chosen else "none"
        producer = self._producers.get(codec)
        if producer is None:
            producer = BlockingProducer({**config.properties(), "compression.type": codec})
            producer.start()
            self._producers[codec] = producer
        return producer

    def close(self) -> None:
        for producer in self._producers.values():
            producer.stop()
