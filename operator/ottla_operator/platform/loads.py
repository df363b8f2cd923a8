"""The loads of partitions, from the brokers' metrics and log directories.

`LoadMonitor` is kept by the process of the operator, one for each cluster; `reconcile` calls it. Brokers
count bytes by topic. A partition's share of its topic's bytes on its leader is its share of the records that
were appended there (the log end offset's growth), so that nothing more is counted on the brokers' hot path.
Sizes and disks are those of DescribeLogDirs.

Rates are averages over the window, in which newer samples count more (an exponential average). They are in
memory: after a start of the operator, the window has to pass before anything is proposed; a rebalance that
has begun goes on at once. A broker that was restarted has new counters, and its next sample is the first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from ottla_operator.planning.observed import (
    BrokerDisks,
    ClusterLoad,
    KafkaState,
    PartitionKey,
    PartitionLoad,
)
from ottla_operator.platform.interfaces import StepFailed

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 30_000
"""Loads are measured again after so long."""
_TIMEOUT_S: Final = 5.0

_BYTES_IN: Final = "kafka_server_brokertopicmetrics_bytesin"
_BYTES_OUT: Final = "kafka_server_brokertopicmetrics_bytesout"
_END_OFFSET: Final = "kafka_log_log_logendoffset"
_SAMPLE: Final = re.compile(
    rf"^({_BYTES_IN}|{_BYTES_OUT}|{_END_OFFSET})(?:persec)?(?:_total)?"
    r'\{(?:partition="([0-9]+)",)?topic="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)
"""In each of the spellings of `ottla.metrics.names`. Labels are in the order of their names."""

FetchMetrics = Callable[[Collection[int]], Awaitable[Mapping[int, str]]]
"""Returns the text of /metrics by broker. Raises StepFailed."""


@dataclass(slots=True)
class BrokerCounters:
    """What one broker has counted since its start."""

    bytes_in: dict[str, float] = field(default_factory=dict)
    bytes_out: dict[str, float] = field(default_factory=dict)
    end_offsets: dict[PartitionKey, float] = field(default_factory=dict)


def parse_counters(text: str) -> BrokerCounters:
    """The counters in the text of /metrics."""
    counters = BrokerCounters()
    for name, partition, topic, value in _SAMPLE.findall(text):
        if name == _END_OFFSET:
            counters.end_offsets[topic, int(partition)] = float(value)
        else:
            by_topic = counters.bytes_in if name == _BYTES_IN else counters.bytes_out
            by_topic[topic] = float(value)
    return counters


class LoadMonitor:
    """See the module."""

    def __init__(self, metrics: FetchMetrics, disks: Callable[[], Awaitable[BrokerDisks]]) -> None:
        self._metrics = metrics
        self._disks = disks
        self._before: dict[int, BrokerCounters] = {}
        self._before_ms = 0
        self._rates: dict[PartitionKey, tuple[float, float]] = {}
        self._began_ms: int | None = None
        self._load = ClusterLoad()

    async def observe(
        self, brokers: Collection[int], kafka: KafkaState, now_ms: int, window_ms: int
    ) -> ClusterLoad:
        """See `Loads`."""
        interval_ms = min(INTERVAL_MS, max(1, window_ms // 4))
        if self._before_ms and now_ms - self._before_ms < interval_ms:
            return self._aged(now_ms, fresh=False)
        try:
            found = {b: parse_counters(text) for b, text in (await self._metrics(brokers)).items()}
            disks = await self._disks()
        except StepFailed as failure:
            log.debug("loads could not be measured: %s", failure.message)
            return ClusterLoad(problem=failure.message)
        led = _led(kafka)
        if self._before_ms:
            self._average(found, led, now_ms - self._before_ms, window_ms)
        if self._began_ms is None:
            self._began_ms = now_ms
        self._before, self._before_ms = found, now_ms
        self._load = ClusterLoad(
            {
                key: PartitionLoad(*self._rates.get(key, (0.0, 0.0)), disks.sizes.get(key, 0))
                for keys in led.values()
                for key in keys
            },
            disks.totals,
        )
        return self._aged(now_ms, fresh=True)

    def _aged(self, now_ms: int, *, fresh: bool) -> ClusterLoad:
        covered_ms = now_ms - self._began_ms if self._began_ms is not None else 0
        return ClusterLoad(self._load.partitions, self._load.disks, covered_ms, fresh=fresh)

    def _average(
        self,
        found: Mapping[int, BrokerCounters],
        led: Mapping[int, Collection[PartitionKey]],
        elapsed_ms: int,
        window_ms: int,
    ) -> None:
        """Add the bytes since the last sample to the averages."""
        weight = 1 - math.exp(-elapsed_ms / max(1, window_ms))
        rates: dict[PartitionKey, tuple[float, float]] = {}
        for broker, keys in led.items():
            before, now = self._before.get(broker), found.get(broker)
            measured = dict(_shares(before, now, keys)) if before is not None and now is not None else {}
            for key in keys:
                old = self._rates.get(key)
                if key not in measured:
                    # A restarted broker, or a new leader.
                    if old is not None:
                        rates[key] = old
                    continue
                bytes_in, bytes_out = (each * 1000 / elapsed_ms for each in measured[key])
                if old is None:
                    rates[key] = bytes_in, bytes_out
                else:
                    rates[key] = (
                        old[0] + weight * (bytes_in - old[0]),
                        old[1] + weight * (bytes_out - old[1]),
                    )
        self._rates = rates


def _led(kafka: KafkaState) -> dict[int, list[PartitionKey]]:
    led: dict[int, list[PartitionKey]] = {}
    for partition in kafka.partitions():
        led.setdefault(partition.leader, []).append(partition.key)
    return led


def _shares(
    before: BrokerCounters, now: BrokerCounters, led: Collection[PartitionKey]
) -> Iterator[tuple[PartitionKey, tuple[float, float]]]:
    """The bytes in and out of each led partition between two samples of its leader."""
    by_topic: dict[str, list[PartitionKey]] = {}
    for key in led:
        by_topic.setdefault(key[0], []).append(key)
    for topic, keys in by_topic.items():
        bytes_in = now.bytes_in.get(topic, 0.0) - before.bytes_in.get(topic, 0.0)
        bytes_out = now.bytes_out.get(topic, 0.0) - before.bytes_out.get(topic, 0.0)
        known = [key for key in keys if key in before.end_offsets and key in now.end_offsets]
        grown = {key: now.end_offsets[key] - before.end_offsets[key] for key in known}
        if bytes_in < 0 or bytes_out < 0 or not known or min(grown.values()) < 0:
            continue
        total = sum(grown.values())
        for key in known:
            share = grown[key] / total if total else 1 / len(known)
            yield key, (bytes_in * share, bytes_out * share)


def metrics_over_http(addresses: Callable[[], Mapping[int, str]]) -> FetchMetrics:
    """Fetches /metrics from the brokers at these addresses (host:port)."""

    async def fetch(brokers: Collection[int]) -> Mapping[int, str]:
        known = addresses()
        missing = sorted(set(brokers) - set(known))
        if missing:
            raise StepFailed("NoMetrics", f"broker {missing[0]} has no metrics endpoint (ottla.http.port)")
        wanted = sorted(brokers)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            texts = await asyncio.gather(*(_get(session, broker, known[broker]) for broker in wanted))
        return dict(zip(wanted, texts, strict=True))

    return fetch


async def _get(session: aiohttp.ClientSession, broker: int, address: str) -> str:
    try:
        async with session.get(f"http://{address}/metrics") as answer:
            answer.raise_for_status()
            return await answer.text()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        message = f"the metrics of broker {broker} at {address}: {error or type(error).__name__}"
        raise StepFailed("NoMetrics", message) from None
