"""Interceptors of records: Kafka's ProducerInterceptor and ConsumerInterceptor.

Written by users, set as `interceptor.classes` or `interceptors`; called by `producer` and `consumer` through
the two `…Interceptors` classes here. As in Kafka, an exception of an interceptor is logged and not raised:
the record is passed unchanged to the next interceptor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ottla.client.core.config import ProducerConfig
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.settings import ConfigError, made

log = logging.getLogger("ottla.client")

R = TypeVar("R")


class ProducerInterceptor(Protocol[R]):
    """Runs in the thread of the caller and must be quick. `R` is the record type of the producer."""

    def on_send(self, record: R) -> R:
        """Called before serialization and partitioning; returns the record to send."""
        ...

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        """A record was acknowledged (`metadata` is a RecordMetadata) or has failed: `metadata` then has its
        topic, and its partition if the record has one, else -1."""
        ...

    def close(self) -> None: ...


class ConsumerInterceptor(Protocol[R]):
    """`R` is the type of the results of `poll`: records by partition."""

    def on_consume(self, records: R) -> R:
        """Called before `poll` returns; returns the records to return."""
        ...

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        """Offsets were committed, by partition."""
        ...

    def close(self) -> None: ...


class ProducerInterceptors(Generic[R]):
    """Calls interceptors in order. False if there are none, so that the producer skips it."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor[R]] = ()) -> None:
        self._all = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_send(self, record: R) -> R:
        for interceptor in self._all:
            try:
                record = interceptor.on_send(record)
            except Exception:
                _log(interceptor, "on_send")
        return record

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        for interceptor in self._all:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:
                _log(interceptor, "on_acknowledgement")

    def close(self) -> None:
        _close(self._all)


class ConsumerInterceptors(Generic[R]):
    """Calls interceptors in order. False if there are none."""

    def __init__(self, interceptors: Iterable[ConsumerInterceptor[R]] = ()) -> None:
        self._all = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_consume(self, records: R) -> R:
        for interceptor in self._all:
            try:
                records = interceptor.on_consume(records)
            except Exception:
                _log(interceptor, "on_consume")
        return records

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        for interceptor in self._all:
            try:
                interceptor.on_commit(offsets)
            except Exception:
                _log(interceptor, "on_commit")

    def close(self) -> None:
        _close(self._all)


def made_of(config: ProducerConfig | ConsumerConfig) -> list[Any]:
    """The interceptors of a configuration. On ConfigError, those created before are closed."""
    interceptors: list[Any] = []
    try:
        interceptors.extend(
            made("interceptor.classes", given, config) for given in config.interceptor_classes
        )
    except ConfigError:
        _close(interceptors)
        raise
    return [*interceptors, *config.interceptors]


def _close(interceptors: Iterable[Any]) -> None:
    for interceptor in interceptors:
        try:
            if hasattr(interceptor, "close"):
                interceptor.close()
        except Exception:
            _log(interceptor, "close")


def _log(interceptor: object, method: str) -> None:
    log.warning("the interceptor %s failed in %s", type(interceptor).__qualname__, method, exc_info=True)
