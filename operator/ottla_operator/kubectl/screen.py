"""The text of `kubectl ottla status`: a cluster's state, operations in progress, and what brokers wait for.

Pure: objects in the API's form in, lines out. Accepts a missing status, and one of an older operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ottla_operator.conditions import Condition, is_unusual, parse_iso_time

Object = Mapping[str, Any]
Row = tuple[str, ...]

_GAP: Final = "   "
_WHY_MAX: Final = 160


def screen(cluster: Object, others: Sequence[Object], now_ms: int, console: Object | None = None) -> str:
    """The status text of a cluster. `others`: the resources that refer to it; `console`: its Service."""
    return "\n".join(_lines(cluster, others, now_ms, console)) + "\n"


def overview(clusters: Sequence[Object]) -> str:
    """A table with a line for each cluster."""
    rows = [("NAMESPACE", "NAME", "READY", "BROKERS", "STATUS", "MESSAGE")]
    for cluster in clusters:
        ready = _condition(cluster, "Ready")
        rows.append(
            (
                cluster["metadata"]["namespace"],
                cluster["metadata"]["name"],
                ready.get("status", "Unknown"),
                f"{_status(cluster).get('readyReplicas', 0)}/{_desired(cluster)}",
                ready.get("reason", ""),
                _short(ready.get("message", "")),
            )
        )
    return "\n".join(_table(rows)) + "\n"


def _lines(cluster: Object, others: Sequence[Object], now_ms: int, console: Object | None) -> Iterator[str]:
    metadata, status = cluster["metadata"], _status(cluster)
    ready = _condition(cluster, "Ready")
    yield f"{metadata['namespace']}/{metadata['name']}: {_describe(ready)}"
    yield _GAP + ", ".join(_counts(cluster, status))
    if status.get("bootstrapServers"):
        yield f"{_GAP}bootstrap servers: {status['bootstrapServers']}"
    for listener in status.get("listeners") or ():
        servers = listener.get("bootstrapServers") or "no address yet"
        if servers != status.get("bootstrapServers"):
            yield f"{_GAP}listener {listener['name']}: {servers}"
    if console is not None:
        yield _GAP + _console(console)
    if status.get("zookeeper"):
        yield from (_GAP + line for line in _zookeeper(status["zookeeper"]))
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        yield f"{_GAP}the operator has not reconciled the newest spec yet"
    yield from (_GAP + line for line in _progress(status, now_ms))
    unusual = [condition for condition in _conditions(cluster) if _shown(condition)]
    yield from (f"{_GAP}{condition['type']}: {_describe(condition)}" for condition in unusual)
    yield from (f"{_GAP}warning: {_short(warning)}" for warning in status.get("warnings") or ())
    yield ""
    yield from _brokers(status)
    volumes = _volumes(status)
    if volumes:
        yield ""
        yield from volumes
    pools = [item for item in others if item["kind"] == "BrokerPool"]
    if pools:
        yield ""
        yield from _pools(pools)
    pipelines = [item for item in others if item["kind"] == "Pipeline"]
    if pipelines:
        yield ""
        yield from _pipelines(pipelines)
    if others:
        yield ""
        yield from _resources(others)


def _console(service: Object) -> str:
    """The address of the console in the cluster, and how a browser elsewhere reaches it."""
    metadata, port = service["metadata"], service["spec"]["ports"][0]
    name, namespace = metadata["name"], metadata["namespace"]
    scheme = port.get("appProtocol", "http")
    forward = f"kubectl port-forward -n {namespace} service/{name} {port['port']}"
    return f"console: {scheme}://{name}.{namespace}.svc:{port['port']}/ ({forward})"


def _counts(cluster: Object, status: Object) -> Iterator[str]:
    yield f"{status.get('readyReplicas', 0)} of {_desired(cluster)} brokers are ready"
    if _condition(cluster, "Ready").get("reason") in ("Hibernating", "Hibernated"):
        return
    controller = status.get("controllerId", -1)
    yield (
        f"broker {controller} is the controller"
        if controller >= 0
        else "waiting for a controller to be elected"
    )
    counts = (
        ("underReplicatedPartitions", "under-replicated"),
        ("underMinIsrPartitions", "below min ISR"),
        ("offlinePartitions", "offline"),
    )
    problems = [f"{status[field]} {label}" for field, label in counts if status.get(field)]
    yield f"partitions: {', '.join(problems)}" if problems else "all partitions are in sync"


def _desired(cluster: Object) -> int:
    """The number of brokers that the cluster's own pool and BrokerPools ask for."""
    return int(_status(cluster).get("desiredBrokers") or cluster["spec"].get("replicas", 0))


def _progress(status: Object, now_ms: int) -> Iterator[str]:
    roll, move = status.get("rollout"), status.get("reassignment")
    if roll:
        since = _ago(roll["startedAt"], now_ms)
        verb = "has to roll" if _is_held(status) else "rolling"
        yield f"{verb} to revision {roll['targetHash']}: {roll['updated']} of {roll['total']}, for {since}"
    if move:
        since = _ago(move["startedAt"], now_ms)
        rate = (status.get("throttle") or {}).get("rate")
        throttle = f", throttled to {rate} bytes/s per broker" if rate else ""
        yield f"moving replicas ({move['reason']}): {move['moved']} of {move['total']}, for {since}{throttle}"
    upgrade = status.get("upgrade")
    if upgrade:
        yield f"upgrading from {upgrade['fromVersion']} to {upgrade['toVersion']}: {upgrade['phase'].lower()}"
    request = status.get("reassignRequest")
    if request and request["phase"] != "Completed":
        why = f" ({_short(request['message'])})" if request.get("message") else ""
        yield f"requested reassignment: {request['phase']}{why}"


def _is_held(status: Object) -> bool:
    """Whether the roll waits for a maintenance window or for other clusters."""
    conditions = status.get("conditions") or ()
    return any(c["type"] == "Rolling" and c["reason"].startswith("WaitingFor") for c in conditions)


def _zookeeper(zookeeper: Object) -> Iterator[str]:
    servers = zookeeper.get("servers") or ()
    ready = sum(bool(server.get("ready")) for server in servers)
    leaders = [f"server {server['id']} leads" for server in servers if server.get("role") == "leader"]
    yield ", ".join([f"ZooKeeper: {ready} of {zookeeper['total']} servers are ready", *leaders])
    for server in servers:
        if server.get("waitingFor"):
            yield f"ZooKeeper server {server['id']} waits for {server['waitingFor']}"


def _brokers(status: Object) -> list[str]:
    brokers = status.get("brokers") or ()
    of_pools = any(broker.get("pool") for broker in brokers)
    first = ("BROKER", "POOL", "POD") if of_pools else ("BROKER", "POD")
    rows: list[Row] = [(*first, "STATE", "READY", "REVISION", "MESSAGE")]
    for broker in brokers:
        notes = (
            [f"restart due: {', '.join(broker['restartReasons'])}"] if broker.get("restartReasons") else []
        )
        notes += [f"waiting for {broker['waitingFor']}"] if broker.get("waitingFor") else []
        name = str(broker["id"]) + ("*" if broker["id"] == status.get("controllerId") else "")
        ready = "yes" if broker.get("ready") else "no"
        pool = (broker.get("pool") or "-",) if of_pools else ()
        row = (broker.get("podName", ""), broker.get("state", ""), ready, broker.get("configHash", ""))
        rows.append((name, *pool, *row, _short("; ".join(notes))))
    return _table(rows) if len(rows) > 1 else ["no brokers"]


def _volumes(status: Object) -> list[str]:
    """The disks of brokers with several volumes."""
    rows: list[Row] = [("BROKER", "VOLUME", "STATE", "SIZE", "USED", "REPLICAS")]
    for broker in status.get("brokers") or ():
        for volume in broker.get("volumes") or ():
            size, used = volume.get("bytes"), volume.get("usedPercent")
            rows.append(
                (
                    str(broker["id"]),
                    str(volume["id"]),
                    volume["state"],
                    "-" if size is None else f"{size / 2**30:.1f}Gi",
                    "-" if used is None else f"{used} %",
                    str(volume.get("replicas", 0)),
                )
            )
    return _table(rows) if len(rows) > 1 else []


def _pools(pools: Sequence[Object]) -> list[str]:
    rows: list[Row] = [("POOL", "READY", "RACK", "IDS", "LEAVING")]
    for item in pools:
        spec, status = item["spec"], _status(item)
        ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
        ids = [
            ",".join(map(str, status.get(field) or ())) or "-" for field in ("brokerIds", "leavingBrokerIds")
        ]
        rows.append((item["metadata"]["name"], ready, spec.get("rack") or "-", *ids))
    return _table(rows)


def _pipelines(pipelines: Sequence[Object]) -> list[str]:
    rows: list[Row] = [("PIPELINE", "JOB", "STATUS", "LAG", "LAST BATCH", "APPLICATION")]
    for item in pipelines:
        status = _status(item)
        batch = status.get("lastBatch")
        rows.append(
            (
                item["metadata"]["name"],
                item["spec"].get("job", ""),
                _condition(item, "Ready").get("reason", ""),
                str(status["lag"]) if "lag" in status else "-",
                f"{batch['id']}: {batch['records']} records" if batch else "-",
                status.get("applicationId") or "-",
            )
        )
    return _table(rows)


def _resources(others: Sequence[Object]) -> Iterator[str]:
    """The resources that are not Ready with the reason, the number of the others, and all warnings."""
    rows: list[Row] = [("RESOURCE", "READY", "STATUS", "MESSAGE")]
    ready_counts: dict[str, int] = {}
    for item in others:
        ready = _condition(item, "Ready")
        if ready.get("status") == "True":
            ready_counts[item["kind"]] = ready_counts.get(item["kind"], 0) + 1
            continue
        name = f"{item['kind']}/{item['metadata']['name']}"
        why = _short(ready.get("message", ""))
        rows.append((name, ready.get("status", "Unknown"), ready.get("reason", ""), why))
    if len(rows) > 1:
        yield from _table(rows)
    if ready_counts:
        counted = ", ".join(f"{kind} {number}" for kind, number in sorted(ready_counts.items()))
        yield f"ready: {counted}"
    for item in others:
        for warning in _status(item).get("warnings") or ():
            yield f"warning: {item['kind']}/{item['metadata']['name']}: {_short(warning)}"


# ---- formatting


def _status(item: Object) -> Object:
    status: Object = item.get("status") or {}
    return status


def _conditions(item: Object) -> list[Object]:
    return list(_status(item).get("conditions") or ())


def _condition(item: Object, type_: str) -> Object:
    return next((condition for condition in _conditions(item) if condition["type"] == type_), {})


def _shown(condition: Object) -> bool:
    return condition["type"] != "Ready" and is_unusual(Condition.model_validate(condition))


def _describe(condition: Object) -> str:
    if not condition:
        return "no status yet; check that the operator runs"
    prefix = {"True": "", "False": "not ", "Unknown": "unknown whether "}[condition["status"]]
    head = f"{prefix}{condition['type']}" if condition["type"] == "Ready" else condition["reason"]
    detail = condition.get("message") or condition["reason"]
    return f"{head} ({_short(detail)})"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WHY_MAX else line[: _WHY_MAX - 1] + "…"


def _ago(started_at: str, now_ms: int) -> str:
    seconds = max(0, now_ms - parse_iso_time(started_at)) // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def _table(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
