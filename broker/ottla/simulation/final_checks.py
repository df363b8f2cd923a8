"""The end of a run: all brokers are stopped in order, and what they leave on their disks is verified.

Called by `runner`, when the cluster is whole and the workloads have ended. Checked, with a violation that
names the file and the place:

- *files are whole*: `ottla log check` finds no error on any disk;
- *files can be recovered*: a broker that is started without the mark of an orderly stop, and without recovery
  points, recovers all logs, truncates none, and leaves files without errors;
- *same records*: below the high watermark all replicas have the same batches; in a compacted log, whose
  replicas are cleaned at different times, the same records at the offsets that are left;
- *same producers*: replicas with the same records know the same epochs, sequences and open transactions of
  producers, and so does a log that is recovered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ottla.ports.threads import run_inline
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import decode_batch, iter_batches
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.disk import ProcessFiles, SimulatedDisk
from ottla.simulation.loop import Process
from ottla.storage.checkpoints import RECOVERY_POINT_FILE, TopicPartition
from ottla.storage.log import Log
from ottla.storage.log_dir import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    LogDirProblem,
    parse_partition_directory,
    read_properties,
)
from ottla.storage.log_dir_checks import check_log_dirs
from ottla.storage.log_manager import LogManager


async def check_files(cluster: Cluster) -> None:
    """Stop all brokers and verify their files. Raises Violation."""
    machines = list(cluster.machines.values())
    for machine in machines:
        machine.wanted = False
        await cluster.stop_broker(machine.id)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of the recoveries
    try:
        for machine in machines:
            _find_errors(machine, machine.disk, "files are whole: after an orderly stop")
            _recover(machine)
    finally:
        logging.disable(level)
    _compare_replicas(cluster)
    cluster.note("simulation", "the files of all brokers are whole")


def _files(machine: Machine, disk: SimulatedDisk) -> ProcessFiles:
    return ProcessFiles(disk, Process(disk.loop, f"{machine.host} checker"))


def _strays(machine: Machine) -> list[str]:
    """The logs of partitions that were moved away while the broker was down: in ZooKeeper mode, as in Kafka,
    they stay until the topic comes back, and may be of a former topic of that name."""
    kept = _logs(machine)
    found = []
    for name in _files(machine, machine.disk).listdir(machine.log_dir):
        key = parse_partition_directory(name)
        if key is not None and key not in kept:
            found.append(name)
    return found


def _find_errors(machine: Machine, disk: SimulatedDisk, what: str) -> None:
    strays = _strays(machine)
    errors = [
        finding
        for finding in check_log_dirs(_files(machine, disk), [machine.log_dir])
        if finding.is_error and not any(name in str(finding) for name in strays)
    ]
    if errors:
        raise Violation(f"{what}, on broker {machine.id}: {errors[0]}" + _more(len(errors) - 1))


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def _logs(machine: Machine) -> dict[TopicPartition, tuple[Log, int]]:
    """The logs that a broker had when it stopped, with their high watermarks."""
    if machine.broker is None:
        return {}
    return {
        (each.topic, each.partition): (each.log, each.high_watermark)
        for each in machine.broker.replication.replicas.partitions()
    }


def _recover(machine: Machine) -> None:
    """Open the logs as after a crash, on a copy of the disk."""
    disk = machine.disk.copy()
    files = _files(machine, disk)
    for name in (CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE):
        if files.exists(machine.log_dir / name):
            files.unlink(machine.log_dir / name)
    cluster_id = read_properties(files, machine.log_dir / META_PROPERTIES_FILE).get("cluster.id", "")
    manager = LogManager(
        [machine.log_dir],
        machine.id,
        cluster_id,
        files=files,
        source=disk.random,
        run_parallel=run_inline,
    )
    what = f"files can be recovered: on broker {machine.id}"
    logs = _logs(machine)
    policies = {tp[0]: {"cleanup.policy": log.config.cleanup_policy} for tp, (log, _) in logs.items()}
    try:
        manager.load(machine.clock.wall_ms(), policies)
    except (LogDirProblem, KafkaError) as problem:
        raise Violation(f"{what}: {problem}") from problem
    for key, (log, _) in logs.items():
        found = manager.get(*key)
        if found is None:
            raise Violation(f"{what}, {key[0]}-{key[1]} is not found")
        offsets = (log.log_start_offset, log.log_end_offset)
        if (found.log_start_offset, found.log_end_offset) != offsets:
            raise Violation(
                f"{what}, {key[0]}-{key[1]} has the offsets {found.log_start_offset} to "
                f"{found.log_end_offset}, and the broker had {offsets[0]} to {offsets[1]} when it stopped"
            )
        _compare_producers(f"{what}, {key[0]}-{key[1]}", log, found)
    for name, file in machine.disk.names.items():
        if name.endswith(".log") and (name not in disk.names or disk.names[name].data != file.data):
            raise Violation(f"{what}, recovery has changed {name}")
    _find_errors(machine, disk, "files can be recovered: after recovery")


# --- the producers ---


def _producers(log: Log) -> dict[int, tuple[int, int, int, int | None]]:
    """Of each producer: its epoch, its last sequence and offset, and where its open transaction begins."""
    found = {}
    for producer_id, entry in log.producers.all().items():
        last_offset = entry.batches[-1].last_offset if entry.batches else -1
        found[producer_id] = (entry.epoch, entry.last_sequence, last_offset, entry.transaction_start)
    return found


def _compare_producers(what: str, log: Log, other: Log) -> None:
    """Two logs with the same records know the same producers, unless the first records were deleted."""
    if log.log_start_offset or other.log_start_offset or log.log_end_offset != other.log_end_offset:
        return
    known, found = _producers(log), _producers(other)
    for producer_id in known.keys() | found.keys():
        if known.get(producer_id) != found.get(producer_id):
            raise Violation(
                f"same producers: {what}: producer {producer_id} has (epoch, sequence, offset, transaction) "
                f"{known.get(producer_id)} and {found.get(producer_id)}"
            )


# --- the records of all replicas ---


def _compare_replicas(cluster: Cluster) -> None:
    logs = {machine.id: _logs(machine) for machine in cluster.machines.values()}
    for topic, assignment in cluster.topics().items():
        for number, replicas in assignment.partitions.items():
            key = (topic, number)
            found = [(each, *logs[each][key]) for each in replicas if key in logs.get(each, {})]
            if not found:
                continue
            high_watermark = max(high_watermark for _, _, high_watermark in found)
            read = _records if any(log.config.compacts for _, log, _ in found) else _batches
            seen: dict[int, tuple[Any, int]] = {}
            for broker_id, log, _ in found:
                _compare_producers(
                    f"{topic}-{number} on brokers {found[0][0]}, {broker_id}", found[0][1], log
                )
                for offset, content, where in read(cluster.machines[broker_id], log):
                    if offset >= high_watermark:
                        break
                    known, holder = seen.setdefault(offset, (content, broker_id))
                    if known != content:
                        raise Violation(
                            f"same records: offset {offset} of {topic}-{number} differs between brokers "
                            f"{holder} and {broker_id}, below the high watermark {high_watermark}: {where}"
                        )


_Contents = Iterator[tuple[int, Any, str]]
"""Offset, what is there, and the place in a file."""


def _batches(machine: Machine, log: Log) -> _Contents:
    """The batches of a log that keeps all of them; their places have no gaps."""
    end: int | None = None
    for data, position, header, path in _headers(machine, log):
        where = f"{path}, byte {position}"
        if end is not None and header.base_offset != end:
            raise Violation(f"same records: after offset {end - 1} follows {header.base_offset}: {where}")
        end = header.next_offset
        if header.base_offset >= log.log_start_offset:
            yield header.base_offset, bytes(data[position : position + header.size]), where


def _records(machine: Machine, log: Log) -> _Contents:
    for data, position, _, path in _headers(machine, log):
        for record in decode_batch(data, position):
            if record.offset >= log.log_start_offset:
                yield record.offset, record, f"{path}, byte {position}"


def _headers(machine: Machine, log: Log) -> Iterator[tuple[memoryview, int, Any, str]]:
    prefix = f"{log.directory}/"
    paths = [
        name
        for name in machine.disk.names
        if name.startswith(prefix) and name.endswith(".log") and "/" not in name[len(prefix) :]
    ]
    for path in sorted(paths):
        data = memoryview(bytes(machine.disk.names[path].data))
        for position, header in iter_batches(data):
            yield data, position, header, path
