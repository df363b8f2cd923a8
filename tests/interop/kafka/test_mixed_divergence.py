"""Leader and follower of different kinds part ways, and come together again on the new leader's history.

The leader gets records that its follower cannot fetch, for their link is cut, and dies. The follower leads,
under either kind of controller, and takes other records at those offsets. The old leader comes back, and must
forget its own (KIP-101, KIP-279): afterwards the two logs are the same, byte for byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ottla.local.processes import wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata import znodes
from ottla.metadata.znodes import PartitionState
from tests.judges.mixed import Kind, Seat
from tests.judges.network import Host, Network, needs_namespaces
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(600)

CONTROLLER, KAFKA, OTTLA = 0, 1, 2
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 120
SETTINGS: Final = {
    # Who is killed is taken out of ZooKeeper at once; nobody else shall seem dead on a busy machine.
    "zookeeper.session.timeout.ms": "30000",
    # Nobody leaves the ISR for being slow: who is cut off is to be elected.
    "replica.lag.time.max.ms": "300000",
    "offsets.topic.replication.factor": "1",
    "auto.leader.rebalance.enable": "false",
}


class Divided:
    """A controller of one kind, and a broker of each; every one is a host of its own."""

    def __init__(self, network: Network, directory: Path, controller: Kind) -> None:
        self.network = network
        at_zookeeper = network.add_host()
        self.zookeeper = EmbeddedZooKeeper(
            directory / "zookeeper", host=at_zookeeper.address, prefix=at_zookeeper.prefix
        )
        self.zookeeper.start()
        self.kinds: dict[int, Kind] = {CONTROLLER: controller, KAFKA: "kafka", OTTLA: "ottla"}
        self.hosts: dict[int, Host] = {broker: network.add_host() for broker in self.kinds}
        self.seats = {
            broker: Seat(
                broker,
                directory / str(broker),
                self.zookeeper.connect,
                SETTINGS,
                host=host.address,
                prefix=host.prefix,
            )
            for broker, host in self.hosts.items()
        }
        self._tree = KazooClient(self.zookeeper.connect)

    def start(self) -> None:
        self._tree.start()
        for broker, kind in self.kinds.items():
            self.seats[broker].start(kind)
            path = znodes.CONTROLLER if broker == CONTROLLER else znodes.broker_path(broker)
            assert wait_until(lambda path=path: self._tree.exists(path) is not None, timeout_s=WAIT_S)
        assert znodes.decode_controller(self._tree.get(znodes.CONTROLLER)[0]) == CONTROLLER

    def stop(self) -> None:
        for seat in self.seats.values():
            seat.kill()
        self._tree.stop()
        self._tree.close()
        self.zookeeper.stop()

    def kill(self, broker: int) -> None:
        """And do what ZooKeeper does once the session is over."""
        self.seats[broker].kill()
        with contextlib.suppress(NoNodeError):
            self._tree.delete(znodes.broker_path(broker))

    def create(self, topic: str, replicas: list[int]) -> None:
        admin = AdminClient({"bootstrap.servers": self.seats[CONTROLLER].address})
        everyone = wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == 3, timeout_s=WAIT_S)
        assert everyone
        admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[replicas])])[topic].result(
            60
        )
        self.await_state(topic, leader=replicas[0], isr=replicas)

    def state(self, topic: str) -> PartitionState | None:
        path = znodes.state_path(topic, 0)
        try:
            return znodes.decode_partition_state(topic, 0, self._tree.get(path)[0])
        except NoNodeError:
            return None

    def await_state(self, topic: str, *, leader: int, isr: Sequence[int]) -> None:
        def there() -> bool:
            state = self.state(topic)
            return state is not None and state.leader == leader and set(state.isr) == set(isr)

        assert wait_until(there, timeout_s=WAIT_S, poll_s=0.2), self.state(topic)

    def produce(self, broker: int, topic: str, what: str, acks: str) -> None:
        """Ten records by each codec, each codec's in a batch of their own, to the leader and nobody else."""
        failures: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error:
                failures.append(error)

        for codec in CODECS:
            producer = Producer(
                {
                    "bootstrap.servers": self.seats[broker].address,
                    "acks": acks,
                    "compression.type": codec,
                    "linger.ms": 200,
                    "message.timeout.ms": 90_000,
                }
            )
            for number in range(10):
                value = f"{what} {codec} {number} ".encode() * 20
                producer.produce(topic, value, on_delivery=delivered)
            assert producer.flush(100) == 0
        assert failures == []

    def log(self, broker: int, topic: str) -> bytes:
        """All bytes of the partition's segments."""
        folder = self.seats[broker].directory / "data" / f"{topic}-0"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


@pytest.fixture(scope="module", params=["ottla", "kafka"])
def divided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Divided]:
    needs_kafka_jars()
    needs_namespaces()
    directory = tmp_path_factory.mktemp("divided")
    with Network(directory) as network:
        cluster = Divided(network, directory, request.param)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.mark.parametrize(
    ("leader", "follower"), [(KAFKA, OTTLA), (OTTLA, KAFKA)], ids=["kafka-led", "ottla-led"]
)
def test_the_old_leader_truncates_records_that_its_follower_never_had(
    divided: Divided, leader: int, follower: int
) -> None:
    topic = f"led-by-{divided.kinds[leader]}"
    divided.create(topic, [leader, follower])
    divided.produce(leader, topic, "for both", "all")
    both = divided.log(leader, topic)

    divided.network.cut(divided.hosts[leader], divided.hosts[follower])
    divided.produce(leader, topic, "for nobody", "1")
    assert len(divided.log(leader, topic)) > len(both)
    divided.kill(leader)
    divided.network.heal()
    divided.await_state(topic, leader=follower, isr=[follower])
    divided.produce(follower, topic, "for both again, and longer", "all")

    divided.seats[leader].start(divided.kinds[leader])
    divided.await_state(topic, leader=follower, isr=[leader, follower])
    divided.produce(follower, topic, "the end", "all")
    now = divided.log(follower, topic)
    assert divided.log(leader, topic) == now
    assert now.startswith(both)
    assert len(now) > len(both)
