"""What brokers in a simulated cluster export about faults and load; tests/interop has a real Prometheus."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.client import Consumer, Producer, TopicPartition
from ottla.protocol.errors import KafkaError
from ottla.server.assembly.metrics_page import broker_metrics
from ottla.server.metrics.names import CONFLUENT, STRIMZI
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import (
    controller,
    create,
    end_session,
    in_sync,
    produce,
    read,
    run,
    serving,
    until,
)

OF_CONFLUENTS_DASHBOARD = {
    "kafka_cluster_partition_underminisr",
    "kafka_controller_controllerstats_uncleanleaderelectionspersec",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "kafka_coordinator_group_groupmetadatamanager_numgroups",
    "kafka_coordinator_group_groupmetadatamanager_numgroupsstable",
    "kafka_log_log_size",
    "kafka_network_requestmetrics_localtimems",
    "kafka_network_requestmetrics_remotetimems",
    "kafka_network_requestmetrics_requestqueuetimems",
    "kafka_network_requestmetrics_requestspersec",
    "kafka_network_requestmetrics_responsesendtimems",
    "kafka_network_requestmetrics_totaltimems",
    "kafka_network_socketserver_networkprocessoravgidlepercent",
    "kafka_server_brokertopicmetrics_bytesinpersec",
    "kafka_server_brokertopicmetrics_bytesoutpersec",
    "kafka_server_brokertopicmetrics_messagesinpersec",
    "kafka_server_fetchsessioncache_incrementalfetchsessionevictionspersec",
    "kafka_server_fetchsessioncache_numincrementalfetchsessions",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate",
    "kafka_server_replicafetchermanager_maxlag",
    "kafka_server_replicamanager_isrexpandspersec",
    "kafka_server_replicamanager_isrshrinkspersec",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_sessionexpirelistener_zookeeperdisconnectspersec",
    "kafka_server_sessionexpirelistener_zookeeperexpirespersec",
    "kafka_server_socketservermetrics_connection_count",
}
"""Without those of the JVM, of tiered storage, and of threads and queues that Ottla does not have."""


async def page_of(cluster: Cluster, broker: int, names: str = STRIMZI) -> str:
    found = cluster.machines[broker].broker
    assert found is not None
    page = broker_metrics(
        phase=lambda: "ready",
        usage=found.usage,
        store=found.store,
        logs=found.logs,
        replication=found.replication,
        coordinators=found.coordinators,
        requests=found.requests,
        now_ms=found.ports.clock.wall_ms,
        names=names,
    )
    return (await cluster.in_process("scraper", page())).decode()


async def metric(cluster: Cluster, broker: int, name: str, **labels: str) -> float:
    """The sum of a broker's samples with these labels."""
    text = await page_of(cluster, broker)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def test_a_lost_session_with_zookeeper_is_counted_and_its_state_shown() -> None:
    prefix = "kafka_server_sessionexpirelistener_"

    async def scenario(cluster: Cluster) -> None:
        assert await metric(cluster, 0, f"{prefix}sessionstate") == 1
        assert await metric(cluster, 0, f"{prefix}zookeeperexpires_total") == 0
        end_session(cluster, 0)
        broker = cluster.machines[0].broker
        assert broker is not None
        await until(lambda: broker.store.events.expirations == 1, "the session to be lost")
        await until(lambda: broker.store.events.connected, "a new session")
        assert await metric(cluster, 0, f"{prefix}zookeeperexpires_total") == 1
        assert await metric(cluster, 0, f"{prefix}zookeeperdisconnects_total") >= 1

    run(scenario)


def test_elections_of_leaders_are_counted() -> None:
    name = "kafka_controller_controllerstats_leaderelectionrateandtimems_count"

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [1, 2], 1: [2, 1]})
        await until(lambda: in_sync(cluster, "t") == {1, 2}, "both replicas in sync")
        leads = controller(cluster)
        before = await metric(cluster, leads, name)
        other = next(broker for broker in (1, 2) if broker != leads)
        cluster.kill(other)
        await until(lambda: in_sync(cluster, "t") == {1, 2} - {other}, "the failover")
        assert await metric(cluster, leads, name) > before

    run(scenario)


def test_the_waiting_requests_fetch_sessions_and_lags_are_shown() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [0, 1, 2]})
        await produce(cluster, "t", ["a"] * 10)
        assert await read(cluster, "t") == [["a"] * 10]
        purgatory = "kafka_server_delayedoperationpurgatory_purgatorysize"
        assert await metric(cluster, 0, purgatory, delayedOperation="Fetch") == 2, "of the followers"
        assert await metric(cluster, 0, purgatory, delayedOperation="Produce") == 0
        sessions = "kafka_server_fetchsessioncache_"
        assert await metric(cluster, 0, f"{sessions}numincrementalfetchsessions") >= 2
        assert await metric(cluster, 0, f"{sessions}numincrementalfetchpartitionscached") >= 2
        assert await metric(cluster, 0, f"{sessions}incrementalfetchsessionevictions_total") == 0
        assert await metric(cluster, 1, "kafka_server_replicafetchermanager_maxlag") == 0
        follower = cluster.machines[1].broker
        assert follower is not None
        (lag,) = (lag for _, key, lag in follower.replication.replicas.follower_lags() if key == ("t", 0))
        assert lag == 0

    run(scenario)


def test_a_throttled_client_is_shown_with_its_rate_limit_and_throttle_time() -> None:
    who = {"resource": "Produce", "clientId": "hurried"}

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [0]}, min_insync_replicas="1")
        rates: dict[str, float | None] = {"producer_byte_rate": 1000.0}
        await cluster.admin(lambda admin: admin.alter_client_quota({"client-id": "hurried"}, rates))

        async def send() -> None:
            async with Producer(bootstrap_servers=cluster.bootstrap, client_id="hurried", acks=1) as producer:
                for _ in range(20):
                    await producer.send("t", bytes(1000), partition=0)

        await cluster.in_process("client", send())
        assert await metric(cluster, 0, "ottla_quota_limit", **who) == 1000
        assert await metric(cluster, 0, "kafka_server_quota_byte_rate", **who) > 0
        assert await metric(cluster, 0, "ottla_quota_throttles_total", **who) > 0
        assert await metric(cluster, 0, "ottla_quota_throttled_ms_total", **who) > 1000

    run(scenario, settings={"quota.window.num": "3"})


def test_errors_of_partitions_and_open_transactions_are_shown() -> None:
    errors = "kafka_network_requestmetrics_errors_total"

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [0]})

        async def send() -> None:
            async with Producer(
                bootstrap_servers=cluster.bootstrap, transactional_id="payments", max_request_size=10_000
            ) as producer:
                producer.begin_transaction()
                await producer.send("t", b"v", partition=0)
                await producer.flush()
                total = 0.0
                for broker in range(3):
                    total += await metric(cluster, broker, "ottla_transactional_ids", state="Ongoing")
                assert total == 1
                await producer.commit_transaction()

        async def fetch_beyond() -> None:
            async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none") as consumer:
                consumer.assign([TopicPartition("t", 0)])
                consumer.seek(TopicPartition("t", 0), 10**6)
                with pytest.raises(KafkaError):
                    await consumer.poll(10)

        await cluster.in_process("client", send())
        await cluster.in_process("reader", fetch_beyond())
        assert await metric(cluster, 0, errors, request="Fetch", error="OFFSET_OUT_OF_RANGE") >= 1
        assert len(serving(cluster)) == 3

    run(scenario)


def test_confluents_dashboard_finds_its_metrics_under_its_names() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [0, 1]})
        for _ in range(20):
            await produce(cluster, "t", ["a"])
        text = await page_of(cluster, 0, CONFLUENT)
        names = {family.name for family in text_string_to_metric_families(text)}
        assert names >= OF_CONFLUENTS_DASHBOARD

    run(scenario)
