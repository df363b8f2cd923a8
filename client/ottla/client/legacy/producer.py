"""The producer of Kafka 0.8: sync, or async over a queue that a thread empties in batches.

    with Producer(metadata_broker_list="127.0.0.1:9092", request_required_acks=-1) as producer:
        producer.send(KeyedMessage("orders", b"one", key=b"customer-7"))

Over the blocking producer of today, which finds leaders, makes batches and tries again. Invariants:
messages of a partition keep the order in which they were sent; a sync `send` returns when all were
acknowledged, or raises FailedToSendMessageError with those that were not. As in 0.8, request.required.acks
is 0 by default: then nothing is acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.blocking_producer import Producer as TodaysProducer
from ottla.client.core.types import RecordMetadata
from ottla.client.errors import ClientError, RequestTimedOutError
from ottla.client.legacy import encoders
from ottla.client.legacy.configs import ProducerConfig
from ottla.client.legacy.errors import FailedToSendMessageError, ProducerClosedError
from ottla.client.legacy.handlers import CallbackHandler, EventHandler, KeyedMessage, keyed_messages
from ottla.client.legacy.message_sets import Message
from ottla.client.legacy.send_thread import SendThread

_FOREVER: Final = float("inf")


class Producer:
    """May be shared by threads; their sync sends go one after the other."""

    def __init__(
        self,
        settings: Mapping[str, object] | ProducerConfig | None = None,
        /,
        *,
        event_handler: EventHandler | None = None,
        **keywords: object,
    ) -> None:
        """0.8's dotted keys in a mapping, or keywords with underscores. `event_handler` takes the place of
        event.handler. Raises ConfigError; ClientError when zookeeper.connect has no brokers."""
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
        self._thread: SendThread | None = None
        if config.producer_type == "async":
            self._thread = SendThread(config, self._handler, callbacks)

    def send(self, *given: Any) -> None:
        """Sync: write them, and wait for the acknowledgements that are asked for. Async: queue them.

        Takes KeyedMessage and ProducerData, any number or lists of them, or a topic and its messages:
        `send("orders", MessageSet(Message(b"one")))`. Raises FailedToSendMessageError, SerializationError;
        QueueFullError; ProducerClosedError; TypeError for what is none of these."""
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
        """Send what is queued, and close."""
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
    handler = encoders.made(key, given, method, functions=False)
    handler.init(settings)
    return handler


class DefaultEventHandler(EventHandler):
    """Encodes, chooses partitions, sends, and waits for what comes of it. One thread at a time."""

    def __init__(
        self, config: ProducerConfig, settings: Mapping[str, object], callbacks: CallbackHandler | None
    ) -> None:
        """Looks brokers up where zookeeper.connect is set. Raises ConfigError, ClientError."""
        if config.zookeeper_connect is not None:
            # kazoo is loaded by this.
            from ottla.client.legacy.registry import read_brokers

            config = replace(config, metadata_broker_list=read_brokers(config), zookeeper_connect=None)
        self._config = config
        self._callbacks = callbacks
        key_class = config.key_serializer_class or config.serializer_class
        self._encode = encoders.encoder("serializer.class", config.serializer_class, settings)
        self._encode_key = encoders.encoder("key.serializer.class", key_class, settings)
        partitioner = encoders.made("partitioner.class", config.partitioner_class, "partition", settings)
        self._choose = getattr(partitioner, "partition", partitioner)
        self._producers: dict[str, TodaysProducer] = {}
        """By codec; those of compressed.topics may have another one than the rest."""
        self._counts: dict[str, tuple[int, float]] = {}
        """How many partitions topics have, and until when that is believed."""
        self._kept_until: dict[str, float] = {}
        """Until when messages without a key stay in one partition, by topic."""

    def handle(self, messages: Sequence[KeyedMessage]) -> None:
        if self._callbacks is not None:
            messages = self._callbacks.before_sending_data(messages)
        encoded = [(message, self._encoded(message)) for message in messages]
        sent: list[tuple[KeyedMessage, Future[RecordMetadata]]] = []
        used: set[TodaysProducer] = set()
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
            except RequestTimedOutError as problem:  # the next one would wait as long
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
                self._kept_until[message.topic] = -_FOREVER
            tries = self._config.message_send_max_retries
            raise FailedToSendMessageError(
                f"{len(failed)} of {len(messages)} messages were not delivered after {tries} tries; "
                f"{failed[0][0].topic}: {failed[0][1]}",
                failed,
            ) from failed[0][1]

    def _encoded(self, message: KeyedMessage) -> Message:
        given = message.message
        found = given if isinstance(given, Message) else self._encode(given)
        return found if message.key is None else found._replace(key=self._encode_key(message.key).payload)

    def _partition(self, message: KeyedMessage, encoded: Message, producer: TodaysProducer) -> int | None:
        """None without a key: a random one with a leader, kept until topic.metadata.refresh.interval.ms have
        passed or a message was not delivered, as in 0.8.2. Raises ClientError."""
        chosen_by = encoded.key if message.partition_key is None else message.partition_key
        now = time.monotonic()
        if chosen_by is None:
            kept_until = self._kept_until.get(message.topic)
            if kept_until is None or now >= kept_until:
                self._kept_until[message.topic] = self._next_refresh(now)
                if kept_until is not None:
                    producer.leave_partition(message.topic)
            return None
        count, until = self._counts.get(message.topic, (0, 0.0))
        if now >= until:
            count = producer.partitions_for(message.topic)
            self._counts[message.topic] = count, self._next_refresh(now)
        partition: int = self._choose(chosen_by, count)
        if not 0 <= partition < count:
            raise ClientError(
                f"the partitioner gave {partition} for {message.topic}, which has partitions 0 to {count - 1}"
            )
        return partition

    def _next_refresh(self, now: float) -> float:
        """In seconds of the monotonic clock."""
        refresh_ms = self._config.topic_metadata_refresh_interval_ms
        return _FOREVER if refresh_ms < 0 else now + refresh_ms / 1000

    def _producer(self, topic: str) -> TodaysProducer:
        config = self._config
        chosen = not config.compressed_topics or topic in config.compressed_topics
        codec = config.compression_codec if chosen else "none"
        producer = self._producers.get(codec)
        if producer is None:
            producer = TodaysProducer({**config.properties(), "compression.type": codec})
            producer.start()
            self._producers[codec] = producer
        return producer

    def close(self) -> None:
        for producer in self._producers.values():
            producer.stop()
