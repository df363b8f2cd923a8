"""The `Platform` interface for local processes: brokers and ZooKeeper over `ottla.local`.

Used by `ottla up`. All brokers have one address: broker N uses a port of the spec plus N. A broker's folder,
`<data>/brokers/<id>/`, replaces its pod and its volume; `revision.json` in it has the broker's launch
configuration and is kept between runs. Like a kubelet, this class has in memory only which exits were
requested and how often a broker crashed. Without `spec.listeners`, TLS and authorization, brokers have one
plaintext listener.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.local.brokers import BrokerProcess
from ottla.local.processes import StartFailed, free_port, port_in_use
from ottla.local.zookeeper import DEFAULT_HEAP, EmbeddedZooKeeper, JavaUnusable, ZooKeeperUnavailable
from ottla.security.clients import ClientSecurity
from ottla.wire.connection import BrokerConnection
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.observed import BrokerInstance, BrokerRunState, ZooKeeperState
from ottla_operator.planning.revision import VOLUMES, PerBroker
from ottla_operator.planning.volumes import log_dir_name, volumes_of
from ottla_operator.platform.interfaces import Address, BrokerLaunch, Ensured, StepFailed
from ottla_operator.platform.local_security import LocalSecurity, SecretFiles
from ottla_operator.platform.processes import (
    crash_back_off_ms,
    exit_description,
    exit_message,
    terminate_all,
    write_atomically,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.pool import FIRST_ID
from ottla_operator.resources.zookeeper import ManagedZooKeeper

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
PROBE_TIMEOUT_S = 3.0
TERMINATION_GRACE_MS = 60_000
BACK_OFF_MS_MIN, BACK_OFF_MS_MAX = 1_000, 30_000
BACK_OFF_RESET_MS = 60_000
_HTTP_PORT, _HTTP_HOST = "ottla.http.port", "ottla.http.host"


@dataclass(slots=True)
class _BrokerRun:
    """The state of one broker's process."""

    process: BrokerProcess
    port: int
    """The port of the listener that the operator uses."""
    http_address: str = ""
    """HOST:PORT of its metrics and probes, if it has them."""
    started_at_ms: int | None = None
    ready_since_ms: int | None = None
    stop_requested_ms: int | None = None
    after: BrokerLaunch | None = None
    """The configuration that it was stopped for."""
    exited_at_ms: int | None = None
    crashes: int = 0
    last_crash: str = ""


class LocalPlatform:
    """The brokers and the ZooKeeper of one cluster, under one data folder."""

    def __init__(
        self,
        data: Path,
        first_port: int,
        clock_ms: Callable[[], int],
        secrets: SecretFiles,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self._data = data
        self._secured = LocalSecurity(secrets, HOST, first_port, random_bytes)
        self._properties: Mapping[str, str] = {}
        self._security: ClientSecurity | None = None
        self._first_port = first_port
        self._clock_ms = clock_ms
        self._brokers: dict[int, _BrokerRun] = {}
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._problems: dict[int, str] = {}
        # A child process dies with the thread that started it (PR_SET_PDEATHSIG), and ZooKeeper's start
        # blocks: it has a thread that lives as long as this object.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")

    # ---- addresses and files

    @property
    def brokers_dir(self) -> Path:
        return self._data / "brokers"

    def kept_volumes(self) -> Mapping[int, str]:
        known = self._known()
        folders = (path.parent.name for path in self.brokers_dir.glob("*/data*"))
        kept = {int(name) for name in folders if name.isdigit()}.difference(known)
        return {broker: "" for broker in kept if broker >= FIRST_ID}

    def client_ports(self, cluster: BrokerCluster, broker: int) -> list[int]:
        """The port of each of a broker's listeners for clients."""
        if cluster.spec.is_secured:
            return self._secured.client_ports(cluster, broker)
        return [self._first_port + broker]

    def port_problem(self, cluster: BrokerCluster, broker: int, settings: Mapping[str, str]) -> str:
        """Why a stopped broker cannot use its ports, with the option to change; "" when it can."""
        ports = dict.fromkeys(self.client_ports(cluster, broker), "--port")
        of_listeners = {
            port: f"broker {other}"
            for other in cluster.broker_ids
            for port in self.client_ports(cluster, other)
        }
        http = _http_port(settings, broker)
        if http > 0:
            if http in of_listeners:
                where = f"port {http}, for the metrics of broker {broker}, is also the port of a listener of "
                return f"{where}{of_listeners[http]}; give another {_HTTP_PORT}"
            ports[http] = _HTTP_PORT
        for port, given_by in ports.items():
            if port > 65535 or port_in_use(port, HOST):
                what = "is not a valid port" if port > 65535 else "is in use by another program"
                return f"port {port}, for broker {broker}, {what}; give another one with {given_by}"
        return ""

    def http_addresses(self) -> Mapping[int, str]:
        """HOST:PORT of metrics and probes of each running broker."""
        return {
            broker: running.http_address
            for broker, running in sorted(self._brokers.items())
            if running.http_address and running.process.running
        }

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        return [(HOST, self._brokers[broker].port) for broker in sorted(brokers)]

    def bootstrap(self, cluster: BrokerCluster) -> str:
        """The bootstrap servers of the first listener."""
        return ",".join(f"{HOST}:{self.client_ports(cluster, broker)[0]}" for broker in cluster.broker_ids)

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        return self._secured.listeners(cluster) if cluster.spec.is_secured else ()

    def client_properties(self) -> Mapping[str, str]:
        """The client properties of the operator's connections, from the last observation."""
        return self._properties

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return self._secured.traits(cluster) if cluster.spec.is_secured else {}

    def restart_request(self) -> str:
        return ""

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        launches: PerBroker[BrokerLaunch],
        *,
        under_replicated: bool,
        hold_servers: bool = False,
    ) -> Ensured:
        self._update_pool_records(cluster)
        if not cluster.spec.is_secured:
            return Ensured()
        known = self._known()
        brokers = {*cluster.broker_ids, *known}
        used = [
            str(value)
            for broker in known
            for value in ((self._revision(broker) or {}).get("secured") or {}).values()
        ]
        return await self._secured.ensure_children(cluster, sorted(brokers), used, self._clock_ms())

    def _revision_file(self, broker: int) -> Path:
        return self.brokers_dir / str(broker) / "revision.json"

    def _revision(self, broker: int) -> dict[str, Any] | None:
        try:
            revision: dict[str, Any] = json.loads(self._revision_file(broker).read_text())
        except (OSError, ValueError):
            return None
        return revision

    def _log_dirs(self, broker: int, described: Mapping[str, str]) -> list[Path]:
        """The log directories of a broker with these settings."""
        folder = (self.brokers_dir / str(broker)).resolve()
        return [folder / log_dir_name(volume) for volume in volumes_of(described)]

    def _write_revision(self, broker: int, revision: Mapping[str, Any]) -> None:
        content = json.dumps(revision, indent=1, sort_keys=True)
        write_atomically(self._revision_file(broker), content.encode(), 0o666)

    def _update_pool_records(self, cluster: BrokerCluster) -> None:
        """Have the record of each broker's pool up to date for when the pool is deleted."""
        for broker in self._known():
            before = self._revision(broker)
            if before is not None and cluster.pool_of(broker) is not None:
                revision = {**before, **_pool_record(cluster, broker, before)}
                if revision != before:
                    self._write_revision(broker, revision)

    def _known(self) -> list[int]:
        """Ids of the brokers that were started and not removed."""
        return sorted(
            int(path.parent.name)
            for path in self.brokers_dir.glob("*/revision.json")
            if path.parent.name.isdigit()
        )

    # ---- ZooKeeper

    def _connect(self, cluster: BrokerCluster) -> str:
        given = cluster.spec.zookeeper.connect
        if given is not None:
            return given
        return self._zookeeper.connect if self._zookeeper is not None else ""

    def zookeeper_connect(self, cluster: BrokerCluster) -> str:
        """The connect string of the cluster's ZooKeeper."""
        return self._connect(cluster)

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None:
        if cluster.spec.zookeeper.connect is not None:
            return
        if self._zookeeper is None:
            managed = cluster.spec.zookeeper.managed or ManagedZooKeeper()
            heap = managed.heap or DEFAULT_HEAP
            self._zookeeper = EmbeddedZooKeeper(self._data / "zookeeper", heap=heap)
        zookeeper = self._zookeeper
        if zookeeper.running:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, zookeeper.start)
        except (JavaUnusable, ZooKeeperUnavailable, StartFailed) as error:
            raise StepFailed("ZooKeeperFailed", str(error)) from None

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None:
        await self._stop_zookeeper()

    async def _stop_zookeeper(self) -> None:
        """The thread is free once a start that is under way has ended."""
        if self._zookeeper is not None:
            self._zookeeper.abandon_start()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._zookeeper.stop)

    # ---- brokers

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]:
        known = self._known()
        self._use_properties(self._secured.client_properties(cluster) if cluster.spec.is_secured else {})
        instances = await asyncio.gather(*(self._observe(broker) for broker in known))
        external = cluster.spec.zookeeper.connect is not None
        running = (external and not cluster.metadata.deleting) or (
            self._zookeeper is not None and self._zookeeper.running
        )
        zookeeper = ZooKeeperState(running, self._connect(cluster))
        return zookeeper, {instance.id: instance for instance in instances}

    def _use_properties(self, properties: Mapping[str, str]) -> None:
        if properties != self._properties:
            self._properties = properties
            self._security = ClientSecurity.of_properties(properties) if properties else None

    async def _observe(self, broker: int) -> BrokerInstance:
        revision = self._revision(broker) or {}
        running = self._brokers.get(broker)
        state: BrokerRunState = "Stopped"
        message = self._problems.get(broker, "")
        if running is not None:
            ready = running.process.running and await self._probe(running.port)
            state, message = self._update_state(broker, running, ready)
        after = running.after if running is not None and state == "Stopped" else None
        return BrokerInstance(
            id=broker,
            state=state,
            ready=running is not None and running.ready_since_ms is not None and state == "Running",
            config_hash=revision.get("hash", "") if after is None else after.config_hash,
            settings=revision.get("static", {}) if after is None else after.static,
            ready_since_ms=running.ready_since_ms if running else None,
            started_at_ms=running.started_at_ms if running else None,
            crashes=running.crashes if running else 0,
            rack=revision.get("static", {}).get("broker.rack"),
            pool=revision.get("pool", {}).get("name", ""),
            delete_volume=revision.get("pool", {}).get("deleteClaim", False),
            name=f"broker-{broker}",
            message=message,
        )

    async def _probe(self, port: int) -> bool:
        """Whether the broker responds to ApiVersions."""
        try:
            connection = await BrokerConnection.open(
                HOST, port, client_id="ottla-probe", timeout_s=PROBE_TIMEOUT_S, security=self._security
            )
        except Exception:
            # Any failure means that it is not ready; the cause is in the broker's log.
            return False
        connection.close()
        return True

    def _update_state(self, broker: int, running: _BrokerRun, ready: bool) -> tuple[BrokerRunState, str]:
        """The state of the process and its message; records the times of changes."""
        now_ms = self._clock_ms()
        if running.process.running:
            if running.stop_requested_ms is not None:
                if now_ms - running.stop_requested_ms > TERMINATION_GRACE_MS:
                    running.process.kill()
                return "Stopping", ""
            if not ready:
                was_ready = running.ready_since_ms is not None
                running.ready_since_ms = None
                if was_ready:
                    return "Running", "the broker does not respond"
                return (
                    "Starting",
                    f"restarting after a crash: the process {running.last_crash}" if running.crashes else "",
                )
            if running.ready_since_ms is None:
                running.ready_since_ms = now_ms
            elif now_ms - running.ready_since_ms > BACK_OFF_RESET_MS:
                running.crashes = 0
            return "Running", ""
        running.ready_since_ms = None
        if running.stop_requested_ms is not None:
            running.exited_at_ms = running.exited_at_ms or now_ms
            return "Stopped", ""
        if running.exited_at_ms is None:
            running.exited_at_ms = now_ms
            running.crashes += 1
            running.last_crash = _crash_message(running.process)
        return "Crashed", self._problems.get(broker, running.last_crash)

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        before = self._revision(broker)
        if launch is None:
            assert before is not None, f"broker {broker} has no previous revision"
            launch = BrokerLaunch(before["hash"], before["static"], before["properties"])
            secured = before.get("secured")
        else:
            secured = self._secured.settings(cluster, broker) if cluster.spec.is_secured else None
        running = self._brokers.get(broker)
        crashes, last_crash = 0, ""
        if running is not None:
            if running.process.running:
                return
            same = before is not None and before["hash"] == launch.config_hash
            crashes, last_crash = (running.crashes, running.last_crash) if same else (0, "")
            crashed = running.stop_requested_ms is None and running.exited_at_ms is not None
            back_off_ms = crash_back_off_ms(crashes, BACK_OFF_MS_MIN, BACK_OFF_MS_MAX)
            if crashes and crashed and self._clock_ms() - (running.exited_at_ms or 0) < back_off_ms:
                return
        problem = self.port_problem(cluster, broker, launch.properties)
        if problem:
            self._problems[broker] = problem
            raise StepFailed("PortInUse", problem)
        self._problems.pop(broker, None)
        port = self._first_port + broker if secured is None else free_port(HOST)
        process = BrokerProcess(broker, self.brokers_dir / str(broker), port, host=HOST)
        of_listeners = {} if secured is None else self._secured.with_inter_broker_port(secured, port)
        http = _http_port(launch.properties, broker)
        if http == 0:
            http = free_port(HOST)  # chosen here, so that the port is known
        of_http = {_HTTP_PORT: str(http)} if http > 0 else {}
        log_dirs = [str(path) for path in self._log_dirs(broker, launch.static)]
        of_volumes = {"log.dirs": ",".join(log_dirs)} if VOLUMES in launch.static else {}
        process.write_properties(
            self._connect(cluster), {**launch.properties, **of_listeners, **of_http, **of_volumes}
        )
        if before is not None and cluster.of_broker(broker).spec.storage.delete_claim:
            had, has = (self._log_dirs(broker, static) for static in (before["static"], launch.static))
            for path in {*had}.difference(has):
                await asyncio.to_thread(shutil.rmtree, path, True)
        revision = {
            "hash": launch.config_hash,
            "static": dict(launch.static),
            "properties": dict(launch.properties),
            **({} if secured is None else {"secured": secured}),
            **_pool_record(cluster, broker, before),
        }
        self._write_revision(broker, revision)
        process.start()
        host = launch.properties.get(_HTTP_HOST, "")
        host = HOST if host in ("", "0.0.0.0", "::") else host
        self._brokers[broker] = _BrokerRun(
            process,
            port,
            http_address=f"{host}:{http}" if http > 0 else "",
            started_at_ms=self._clock_ms(),
            crashes=crashes,
            last_crash=last_crash,
        )

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        running = self._brokers.get(broker)
        if running is not None and running.stop_requested_ms is None:
            running.stop_requested_ms, running.after = self._clock_ms(), after
            running.process.terminate()

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        running = self._brokers.get(broker)
        if running is not None and running.process.running:
            raise StepFailed("StillRunning", f"broker {broker} is still running")
        self._brokers.pop(broker, None)
        self._problems.pop(broker, None)
        # The volume first: after an interruption, the revision file still identifies the broker.
        if delete_volume:
            for path in (self.brokers_dir / str(broker)).glob("data*"):
                await asyncio.to_thread(shutil.rmtree, path, True)
        self._revision_file(broker).unlink(missing_ok=True)

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        """Not supported: `observe` reports no VolumeLoss, since a broker creates a missing folder when it
        starts."""
        raise StepFailed("NotSupported", f"broker {broker}: data folders are not replaced")

    # ---- shutdown

    async def shutdown(self, *, last: int | None = None, grace_s: float = 45) -> None:
        """Stop the brokers, `last` (the controller) after the others, then ZooKeeper."""
        first = [broker for broker in self._brokers if broker != last]
        await self._terminate(first, grace_s)
        await self._terminate([broker for broker in self._brokers if broker == last], grace_s)
        await self._stop_zookeeper()
        self._thread.shutdown(wait=False)

    async def _terminate(self, brokers: Collection[int], grace_s: float) -> None:
        processes = {f"broker {broker}": self._brokers[broker].process for broker in brokers}
        await terminate_all(processes, grace_s)

    def kill(self) -> None:
        """Kill all processes."""
        for running in self._brokers.values():
            running.process.kill()
        if self._zookeeper is not None and self._zookeeper.running:
            self._zookeeper.kill()


def _pool_record(
    cluster: BrokerCluster, broker: int, before: Mapping[str, Any] | None
) -> dict[str, dict[str, str | bool]]:
    """The part of a broker's revision that names its BrokerPool; {} for the cluster's own pool. `before`: the
    revision so far, which has that of a deleted pool."""
    pool = cluster.pool_of(broker)
    if pool is not None:
        return {"pool": {"name": pool.name, "deleteClaim": pool.spec.storage.delete_claim}}
    return {"pool": before["pool"]} if before is not None and "pool" in before else {}


def _http_port(settings: Mapping[str, str], broker: int) -> int:
    """The port of a broker's metrics and probes: a fixed port plus the broker id; 0: any free port, -1:
    none."""
    port = int(settings.get(_HTTP_PORT, "-1"))
    return port + broker if port > 0 else port


def _crash_message(process: BrokerProcess) -> str:
    """How the process ended, with the cause from its log unless a signal killed it."""
    return exit_description(process.exit_code, lambda: exit_message(process.log_tail(15)))
