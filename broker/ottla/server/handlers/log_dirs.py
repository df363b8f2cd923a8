"""DescribeLogDirs 0 to 4 (KIP-113, KIP-827): what lies in this broker's log directories.

Behaviour: every directory is listed, also one without a replica that was asked for; sizes in bytes, the lag
in offsets behind the high watermark (-1 for a log that no partition uses yet), from version 4 the volume's
size. Replicas are never "future" ones: AlterReplicaLogDirs is not served yet.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch import Request, Route
from ottla.storage.log import Log
from ottla.storage.manager import LogManager

_UNKNOWN = -1
_ERROR_OF_ALL_FROM = 3

PartitionKey = tuple[str, int]
Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition


class LogDirsHandler:
    def __init__(self, logs: LogManager, replicas: ReplicaManager) -> None:
        self._logs = logs
        self._replicas = replicas

    def routes(self) -> list[Route]:
        return [Route(DescribeLogDirsRequest, self.describe, _error)]

    def describe(self, request: Request) -> None:
        message = request.decode(DescribeLogDirsRequest)
        wanted: set[PartitionKey] | None = None
        if message.topics is not None:
            wanted = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
        by_dir: dict[Path, dict[PartitionKey, Log]] = defaultdict(dict)
        for key, log in self._logs.logs().items():
            if wanted is None or key in wanted:
                by_dir[log.directory.parent][key] = log
        results = [self._describe(log_dir, by_dir[log_dir]) for log_dir in self._logs.log_dirs]
        request.respond(DescribeLogDirsResponse(results=results))

    def _describe(self, log_dir: Path, logs: dict[PartitionKey, Log]) -> Result:
        try:
            usage = shutil.disk_usage(log_dir)
        except OSError:
            return Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(log_dir))
        topics: dict[str, list[Partition]] = defaultdict(list)
        for (topic, index), log in sorted(logs.items()):
            topics[topic].append(
                Partition(
                    partition_index=index,
                    partition_size=log.size,
                    offset_lag=self._lag(topic, index, log),
                    is_future_key=False,
                )
            )
        return Result(
            log_dir=str(log_dir),
            topics=[Topic(name=name, partitions=partitions) for name, partitions in topics.items()],
            total_bytes=usage.total,
            usable_bytes=usage.free,
        )

    def _lag(self, topic: str, index: int, log: Log) -> int:
        replica = self._replicas.find(topic, index)
        return _UNKNOWN if replica is None else max(replica.high_watermark - log.log_end_offset, 0)


def _error(
    message: DescribeLogDirsRequest, version: int, code: ErrorCode, detail: str | None
) -> DescribeLogDirsResponse:
    # Below version 3 there is room for an error only where a directory would be.
    nameless = [] if version >= _ERROR_OF_ALL_FROM else [Result(error_code=code, log_dir="")]
    return DescribeLogDirsResponse(error_code=code, results=nameless)
