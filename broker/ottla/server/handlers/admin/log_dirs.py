"""DescribeLogDirs 0 to 4 (KIP-113, KIP-827) and AlterReplicaLogDirs 0 to 2 (KIP-113): the contents of this
broker's log directories, and moves of replicas between them.

Behaviour: every directory is listed, also one without a requested replica, and a failed one
(KAFKA_STORAGE_ERROR, without replicas); sizes in bytes, the lag in offsets behind the high watermark (-1 for
a log that no partition uses yet), from version 4 the volume's size. A replica that is being moved is listed
twice: in its current directory, and as a future replica in the new one, with its lag behind the current
replica.

AlterReplicaLogDirs: LOG_DIR_NOT_FOUND for a directory that is not in log.dirs, KAFKA_STORAGE_ERROR for a move
while any directory is offline, REPLICA_NOT_AVAILABLE for a replica that does not exist here: if it is
created, it is created in that directory.
"""

from __future__ import annotations

from collections import defaultdict

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_manager import LogManager

_UNKNOWN = -1
_ERROR_OF_ALL_FROM = 3

PartitionKey = tuple[str, int]
Result = m.DescribeLogDirsResponse.DescribeLogDirsResult
Topic = m.DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = m.DescribeLogDirsResponse.DescribeLogDirsPartition


class LogDirsHandler:
    def __init__(self, logs: LogManager, replicas: ReplicaManager) -> None:
        self._logs = logs
        self._replicas = replicas

    def routes(self) -> list[Route]:
        return [
            Route(m.DescribeLogDirsRequest, self.describe, _error),
            Route(m.AlterReplicaLogDirsRequest, self.alter, _alter_error),
        ]

    def alter(self, request: Request) -> None:
        message = request.decode(m.AlterReplicaLogDirsRequest)
        # Of a duplicate partition the last entry counts.
        wanted = {
            (topic.name, index): log_dir.path
            for log_dir in message.dirs
            for topic in log_dir.topics
            for index in topic.partitions
        }
        errors = {key: self._replicas.moves.alter(*key, path) for key, path in wanted.items()}
        request.respond(_altered(errors))

    def describe(self, request: Request) -> None:
        message = request.decode(m.DescribeLogDirsRequest)
        wanted: set[PartitionKey] | None = None
        if message.topics is not None:
            wanted = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
        futures = self._logs.future_logs()
        by_dir: dict[LogDir, dict[PartitionKey, Log]] = defaultdict(dict)
        for key, log in [*self._logs.logs().items(), *futures.items()]:
            if wanted is None or key in wanted:
                by_dir[log.log_dir][key] = log
        results = [
            self._describe(log_dir, by_dir[log_dir], futures)
            for log_dir in (*self._logs.online_dirs(), *self._logs.failed_dirs())
        ]
        request.respond(m.DescribeLogDirsResponse(results=results))

    def _describe(
        self, log_dir: LogDir, logs: dict[PartitionKey, Log], futures: dict[PartitionKey, Log]
    ) -> Result:
        try:
            if not log_dir.online:
                raise OSError(log_dir.failure)
            usage = log_dir.files.disk_usage(log_dir.path)
        except OSError:
            return Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(log_dir.path))
        topics: dict[str, list[Partition]] = defaultdict(list)
        for (topic, index), log in sorted(logs.items()):
            topics[topic].append(
                Partition(
                    partition_index=index,
                    partition_size=log.size,
                    offset_lag=self._lag(topic, index, log, is_future=futures.get((topic, index)) is log),
                    is_future_key=futures.get((topic, index)) is log,
                )
            )
        return Result(
            log_dir=str(log_dir.path),
            topics=[Topic(name=name, partitions=partitions) for name, partitions in topics.items()],
            total_bytes=usage.total,
            usable_bytes=usage.free,
        )

    def _lag(self, topic: str, index: int, log: Log, *, is_future: bool) -> int:
        replica = self._replicas.find(topic, index)
        if replica is None:
            return _UNKNOWN
        if is_future:
            return replica.log.log_end_offset - log.log_end_offset
        return max(replica.high_watermark - log.log_end_offset, 0)


def _error(
    message: m.DescribeLogDirsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeLogDirsResponse:
    # Below version 3 only the results have an error code.
    nameless = [] if version >= _ERROR_OF_ALL_FROM else [Result(error_code=code, log_dir="")]
    return m.DescribeLogDirsResponse(error_code=code, results=nameless)


def _altered(errors: dict[PartitionKey, ErrorCode]) -> m.AlterReplicaLogDirsResponse:
    row = m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
    by_topic: dict[str, list[m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for (topic, index), error in errors.items():
        by_topic.setdefault(topic, []).append(row(partition_index=index, error_code=error))
    return m.AlterReplicaLogDirsResponse(
        results=[
            m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=topic, partitions=rows)
            for topic, rows in by_topic.items()
        ]
    )


def _alter_error(
    message: m.AlterReplicaLogDirsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AlterReplicaLogDirsResponse:
    return _altered(
        {
            (topic.name, index): code
            for log_dir in message.dirs
            for topic in log_dir.topics
            for index in topic.partitions
        }
    )
