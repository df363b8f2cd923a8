"""The async producer's queue, and the thread that hands it on in batches.

Called by `producer`. Invariants: messages are handled in the order in which they were queued, at most
batch.num.messages at a time and after queue.buffering.max.ms at the latest; a batch that cannot be handled is
logged and dropped, as in Kafka 0.8, whose `send` had returned by then.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Final

from ottla.client.legacy.configs import ProducerConfig
from ottla.client.legacy.errors import QueueFullError
from ottla.client.legacy.handlers import CallbackHandler, EventHandler, KeyedMessage

log = logging.getLogger(__name__)

_END: Final = KeyedMessage("", None)
"""Told by identity: nothing comes after it."""


class SendThread:
    """It works until `stop`; what is still queued when the interpreter ends without that is lost."""

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
        """Raises QueueFullError after queue.enqueue.timeout.ms; messages before that one are queued."""
        for given in messages:
            message = given if self._callbacks is None else self._callbacks.before_enqueue(given)
            added = self._offer(message)
            if self._callbacks is not None:
                self._callbacks.after_enqueue(message, added)
            if not added:
                most = self._config.queue_buffering_max_messages
                raise QueueFullError(f"{message.topic}: queue.buffering.max.messages={most} wait already")

    def _offer(self, message: KeyedMessage) -> bool:
        timeout_ms = self._config.queue_enqueue_timeout_ms
        try:
            self._queue.put(message, timeout_ms != 0, None if timeout_ms < 0 else timeout_ms / 1000)
        except queue.Full:
            return False
        return True

    def stop(self) -> None:
        """Handle what is queued, and end."""
        self._queue.put(_END)
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
            if message is _END:
                break
            if not batch:
                until = time.monotonic() + wait_s
            batch += self._dequeued(message)
            if len(batch) >= self._config.batch_num_messages:
                self._handle(batch)
                batch = []
        self._handle(batch + self._last())

    def _dequeued(self, message: KeyedMessage) -> Sequence[KeyedMessage]:
        if self._callbacks is not None:
            try:
                return self._callbacks.after_dequeuing_existing_data(message)
            except Exception:
                log.exception("after_dequeuing_existing_data failed: the message is sent as it is")
        return (message,)

    def _last(self) -> list[KeyedMessage]:
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
