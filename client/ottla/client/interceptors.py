"""What looks at, or changes, records on their way: Kafka's ProducerInterceptor and ConsumerInterceptor.

Made by users, given to a producer or a consumer as `interceptor.classes`; called by `ottla.client.producer`
and `consumer` through the two `…Interceptors` here. As in Kafka, an exception of an interceptor is logged and
never raised: the record goes on to the next one as it was before.
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
    """Runs in the caller's turn: it has to be quick. `R` is what a producer takes as a record."""

    def on_send(self, record: R) -> R:
        """Before serialization and partitioning: the record to send in its place."""
        ...

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        """A record was acknowledged (`metadata`, a RecordMetadata), or has failed: `metadata` then has its
        topic, and its partition if the record names one, else -1."""
        ...

    def close(self) -> None: ...


class ConsumerInterceptor(Protocol[R]):
    """`R` is what a consumer gives out: records by partition."""

    def on_consume(self, records: R) -> R:
        """Just before they are given out: the records to give out in their place."""
        ...

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        """Offsets, by partition, were committed."""
        ...

    def close(self) -> None: ...


class ProducerInterceptors(Generic[R]):
    """Calls each, in order. False where there is none, so that a producer can leave them out altogether."""

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
    """As ProducerInterceptors."""

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
    """The interceptors of a configuration. Raises ConfigError, after those that were made are closed."""
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
