"""Hosts of a small network, each a network namespace, whose links can be cut and made to lose packets.

Called by the tests of network faults. A switch connects the hosts with each other and with this process,
which has the address `.1`. A namespace and its links end with the process that holds it, which ends with this
one. Packets are dropped silently (iptables): a refused connection would tell the sender of the fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster
from ottla.local.processes import ChildProcess, free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper

_TOOLS = ("ip", "iptables", "nsenter", "unshare")
_TRIAL = """\
ip link add bridge type bridge
ip link add one type veth peer name two
iptables -w -A INPUT -m statistic --mode random --probability 0.5 -j DROP
"""
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def needs_namespaces() -> None:
    """Skip the test where no network can be made."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    tried = subprocess.run(
        ["unshare", "-n", "sh", "-ec", _TRIAL],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": _PATH},
    )
    if tried.returncode:
        pytest.skip(f"Docker or root is needed for network namespaces: {tried.stderr.strip()}")


class Host(NamedTuple):
    address: str
    prefix: tuple[str, ...]
    """What is put before a command that is to run there."""


class Network:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._subnet = f"10.{128 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
        self._hosts: list[Host] = []
        self._switch: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        try:
            self._switch = self._namespace("switch")
            self._do(self._switch, "ip link add switch type bridge")
            self._do(self._switch, "ip link set switch up")
            self._connect((), 1)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add_host(self) -> Host:
        number = len(self._hosts) + 2
        prefix = self._namespace(f"host-{number}")
        self._do(prefix, "ip link set lo up")
        host = Host(self._connect(prefix, number), prefix)
        self._hosts.append(host)
        return host

    def cut(self, one: Host, other: Host) -> None:
        """Drops all packets between two hosts, in both directions, until `heal`."""
        self._do(one.prefix, f"iptables -w -A INPUT -s {other.address} -j DROP")
        self._do(other.prefix, f"iptables -w -A INPUT -s {one.address} -j DROP")

    def lose(self, host: Host, fraction: float) -> None:
        """Drops a share of the packets that reach the host, at random, until `heal`."""
        self._do(
            host.prefix, f"iptables -w -A INPUT -m statistic --mode random --probability {fraction} -j DROP"
        )

    def heal(self) -> None:
        for host in self._hosts:
            self._do(host.prefix, "iptables -w -F INPUT")

    def _namespace(self, name: str) -> tuple[str, ...]:
        holder = ChildProcess(
            name, ["unshare", "-n", "sleep", "infinity"], log=self._directory / f"{name}.log"
        )
        holder.start()
        self._stack.callback(holder.kill)
        ours = os.readlink("/proc/self/ns/net")
        entered = wait_until(
            lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != ours, timeout_s=30, poll_s=0.01
        )
        assert entered, holder.log_tail()
        return "nsenter", "-t", str(holder.pid), "-n", "--"

    def _connect(self, prefix: tuple[str, ...], number: int) -> str:
        """Plug a namespace (none: this process's own) into the switch; its address."""
        address, near, far = f"{self._subnet}.{number}", f"ottla{os.getpid()}", f"port{number}"
        switch_pid = self._switch[2]
        self._do(prefix, f"ip link add {near} type veth peer name {far} netns {switch_pid}")
        if not prefix:
            # It would go with the switch, but not at once.
            self._stack.callback(self._do, (), f"ip link delete {near}")
        self._do(self._switch, f"ip link set {far} master switch up")
        self._do(prefix, f"ip address add {address}/24 dev {near}")
        self._do(prefix, f"ip link set {near} up")
        return address

    def _do(self, prefix: tuple[str, ...], command: str) -> None:
        subprocess.run(
            [*prefix, *command.split()],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PATH": _PATH},
        )


class NetworkCluster(LocalCluster):
    """Brokers and their ZooKeeper, each a host of its own."""

    def __init__(self, network: Network, directory: Path, settings: dict[str, str]) -> None:
        super().__init__(directory, settings=settings)
        self.network = network
        self.at_zookeeper = network.add_host()
        self.hosts: dict[int, Host] = {}
        self.zookeeper = EmbeddedZooKeeper(
            directory / "zookeeper", host=self.at_zookeeper.address, prefix=self.at_zookeeper.prefix
        )

    def add_broker(self, broker_id: int, settings: object = None) -> BrokerProcess:
        assert settings is None
        host = self.hosts.setdefault(broker_id, self.network.add_host())
        folder = self.directory / "brokers" / str(broker_id)
        broker = BrokerProcess(broker_id, folder, free_port(), host=host.address, prefix=host.prefix)
        broker.write_properties(self.zookeeper.connect, self.settings)
        self.brokers[broker_id] = broker
        broker.start()
        return broker

    def isolate(self, broker: int) -> None:
        """Cuts a broker off from the other brokers and from ZooKeeper; clients still reach it."""
        for other, host in self.hosts.items():
            if other != broker:
                self.network.cut(self.hosts[broker], host)
        self.network.cut(self.hosts[broker], self.at_zookeeper)
