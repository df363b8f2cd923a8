"""Every call of our admin client but those of groups: Apache Kafka 3.9.1 and Ottla give the same results.

What our calls have done is looked at with confluent-kafka's AdminClient as well.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType
from confluent_kafka.admin import AdminClient as Confluent
from confluent_kafka.admin import ConfigResource as ConfluentResource
from confluent_kafka.admin import ResourceType as ConfluentResourceType

from ottla.cli.main import main
from ottla.client import Producer, errors
from ottla.client.admin import (
    ANY,
    AclBinding,
    AclFilter,
    AdminClient,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigType,
    ElectionType,
    Entry,
    EntryFilter,
    FeatureUpdate,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    Operation,
    PatternFilter,
    Permission,
    QuotaEntity,
    ResourcePattern,
    ResourceType,
    ScramDeletion,
    ScramUpsertion,
    TopicPartition,
    TopicPartitionReplica,
)
from tests.judges.admin_sides import Side, Sides, both_brokers, outcomes, until
from tests.judges.kafka_tools import Command, run_all
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)
NOBODY = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    needs_kafka_jars()
    with both_brokers(tmp_path_factory.mktemp("admin")) as running:
        yield running


def tps(topic: str, *partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in partitions]


def test_topics(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        new = [
            NewTopic("a", 3, 1, {"retention.ms": "1000"}),
            NewTopic("b", assignment={0: [0], 1: [0]}),
            NewTopic("defaults"),
            NewTopic("no name!", 1, 1),
            NewTopic("far", 1, 5),
            NewTopic("odd", 1, 1, {"retention.ms": "soon"}),
        ]

        def like(made: Any) -> Any:
            return made.partitions, made.replication_factor, made.config["retention.ms"]

        notes = [outcomes(await admin.create_topics(new, validate_only=True), like)]
        assert await admin.list_topics() == {}
        made = await admin.create_topics(new)
        notes += [outcomes(made, like), outcomes(await admin.create_topics(new[:1]))]
        listed = await admin.list_topics()
        ids = {name: topic.topic_id for name, topic in made.items()}
        assert {name: topic.topic_id for name, topic in listed.items()} == ids

        def shape(topic: Any) -> Any:
            return topic.name, topic.internal, topic.partitions, sorted(topic.authorized_operations or ())

        names = ["a", "b", "nope", "no name!"]
        notes.append(outcomes(await admin.describe_topics(names, authorized_operations=True), shape))
        by_id = await admin.describe_topics([made["a"].topic_id, NOBODY])
        assert by_id[made["a"].topic_id].name == "a"
        notes.append([error.name for error in by_id.errors.values()])

        counts = {"a": 5, "b": NewPartitions(3, [[0]]), "defaults": 1, "nope": 2}
        notes.append(outcomes(await admin.create_partitions(counts, validate_only=True)))
        notes.append(outcomes(await admin.create_partitions({**counts, "b": NewPartitions(3, [[7]])})))
        seen = Confluent({"bootstrap.servers": side.bootstrap}).list_topics(timeout=30).topics
        notes.append({name: len(seen[name].partitions) for name in ("a", "b", "defaults")})

        notes.append(outcomes(await admin.delete_topics(["b", "nope"])))
        gone = await admin.delete_topics([made["defaults"].topic_id, NOBODY])
        notes.append([list(gone) == [made["defaults"].topic_id], [e.name for e in gone.errors.values()]])

        async def is_gone() -> bool:
            return set(await admin.list_topics()) == {"a"}

        await until(is_gone)
        return notes

    told_alike = sides.same(scenario)
    assert told_alike[1]["a"][:2] == (3, 1)
    assert told_alike[2] == {"a": "TOPIC_ALREADY_EXISTS"}


def test_configs(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        await admin.create_topic("set", partitions=1, replication_factor=1, config={"retention.ms": "1000"})
        topic, broker = ConfigResource(ConfigType.TOPIC, "set"), ConfigResource(ConfigType.BROKER, "0")
        every, logger = ConfigResource(ConfigType.BROKER, ""), ConfigResource(ConfigType.BROKER_LOGGER, "0")
        away = ConfigResource(ConfigType.BROKER, "9")

        async def look(*names: str) -> Any:
            found = await admin.describe_configs([topic, broker, every], names=names, synonyms=True)
            return outcomes(found, dict)

        unknown = ConfigResource(ConfigType.TOPIC, "nope")
        notes = [outcomes(await admin.describe_configs([unknown, away], names=["retention.ms"]))]
        notes.append(await look("retention.ms", "log.retention.ms", "cleanup.policy"))
        explained = (await admin.describe_configs([topic], documentation=True))[topic]
        assert all(entry.documentation for entry in explained.values())
        notes.append(sorted(name for name in explained if not name.startswith("ottla.")))
        levels = (await admin.describe_configs([logger]))[logger]
        assert levels["root"].value in ("WARN", "INFO")

        changes = {
            topic: [
                ConfigChange("retention.ms", None, ConfigOperation.DELETE),
                ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND),
                ConfigChange("max.message.bytes", "77777"),
            ],
            every: [ConfigChange("log.retention.ms", "123456789")],
            broker: [ConfigChange("log.cleaner.threads", "many")],
            unknown: [ConfigChange("retention.ms", "1")],
            logger: [ConfigChange("root", "ERROR")],
            away: [ConfigChange("log.retention.ms", "1")],
        }
        notes.append(outcomes(await admin.incremental_alter_configs(changes, validate_only=True)))
        notes.append(await look("retention.ms", "cleanup.policy"))
        notes.append(outcomes(await admin.incremental_alter_configs(changes)))

        async def changed() -> bool:
            return (await admin.describe_topic_configs(["set"]))["set"]["retention.ms"].value == "123456789"

        await until(changed)
        notes.append(await look("retention.ms", "cleanup.policy", "max.message.bytes", "log.retention.ms"))
        resource = ConfluentResource(ConfluentResourceType.TOPIC, "set")
        confluent = Confluent({"bootstrap.servers": side.bootstrap})
        seen = confluent.describe_configs([resource])[resource].result(30)
        notes.append([seen[name].value for name in ("cleanup.policy", "max.message.bytes", "retention.ms")])

        subtract = ConfigChange("cleanup.policy", "delete", ConfigOperation.SUBTRACT)
        notes.append(outcomes(await admin.incremental_alter_configs({topic: [subtract]})))
        notes.append(outcomes(await admin.alter_configs({topic: {"segment.ms": "5000"}, unknown: {}})))

        async def replaced() -> bool:
            found = (await admin.describe_topic_configs(["set"]))["set"]
            return {n for n, c in found.items() if c.source == 1} == {"segment.ms"}

        await until(replaced)
        await admin.alter_broker_config(None, delete=["log.retention.ms"])
        return notes

    sides.same(scenario)


def test_logs_and_log_directories(sides: Sides) -> None:
    start_ms = 1_700_000_000_000

    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        (await admin.create_topics([NewTopic("logs", 2, 1)])).raise_first()
        async with Producer(bootstrap_servers=side.bootstrap, transactional_id="open") as producer:
            async with Producer(bootstrap_servers=side.bootstrap) as plain:
                for n, at in enumerate((0, 500, 200)):
                    await plain.send_and_wait("logs", b"%d" % n, partition=0, timestamp_ms=start_ms + at)
            producer.begin_transaction()
            await producer.send_and_wait("logs", b"3", partition=0, timestamp_ms=start_ms)
            one, empty, no_partition, no_topic = *tps("logs", 0, 1, 7), TopicPartition("nope", 0)
            notes = []
            for spec in (*OffsetSpec, start_ms + 100, start_ms + 900):
                asked = dict.fromkeys((one, empty, no_partition, no_topic), spec)
                notes.append(outcomes(await admin.list_offsets(asked)))
                notes.append(outcomes(await admin.list_offsets(asked, isolation_level="read_committed")))

            def shown(producers: Any) -> Any:
                return sorted(
                    (p.last_sequence, p.producer_epoch, p.transaction_start_offset) for p in producers
                )

            states = await admin.describe_producers([one, empty, no_partition, no_topic])
            notes.append(outcomes(states, shown))
            described = await admin.describe_transactions(["open", "nobody's"])
            notes.append(
                outcomes(described, lambda t: (t.state, t.partitions, t.timeout_ms, t.producer_epoch))
            )
            assert abs(time.time() * 1000 - described["open"].start_ms) < 60_000
            lists = [
                await admin.list_transactions(),
                await admin.list_transactions(states=["Ongoing"]),
                await admin.list_transactions(states=["Empty"]),
                await admin.list_transactions(running_longer_than_ms=600_000),
            ]

            def ids(found: Any) -> Any:
                return [(each.transactional_id, each.state) for each in found]

            notes += [outcomes(each, ids) for each in lists]
            owner = described["open"].producer_id
            for wrong in (tps("logs", 1)[0], one):
                # The first one has nothing to abort, which is no error; the second one does.
                await admin.abort_transaction(wrong, owner, described["open"].producer_epoch, 0)
            stable = await admin.list_offsets({one: OffsetSpec.LATEST}, isolation_level="read_committed")
            notes.append(stable[one].offset)
            fenced = await admin.fence_producers(["open", "new"])
            notes.append(outcomes(fenced, lambda found: found.epoch))
            with pytest.raises(errors.ClientError) as refused:
                await producer.send_and_wait("logs", b"4", partition=0)
            notes.append(type(refused.value).__name__)
            with pytest.raises(errors.ClientError):
                await producer.commit_transaction()

        deleted = {one: 2, empty: 5, no_partition: 1, no_topic: 1}
        notes.append(outcomes(await admin.delete_records(deleted)))
        notes.append(
            outcomes(await admin.list_offsets({one: OffsetSpec.EARLIEST}), lambda found: found.offset)
        )
        notes.append(await admin.start_offsets([one, empty, no_partition]))

        disks = await admin.describe_log_dirs([0, 9])
        assert {each.path for each in disks[0]} == set(side.disks)
        assert all(each.total_bytes > each.usable_bytes > 0 and not each.error for each in disks[0])
        notes.append([error.name for error in disks.errors.values()])
        here, nowhere = TopicPartitionReplica("logs", 0, 0), TopicPartitionReplica("logs", 5, 0)
        away = TopicPartitionReplica("logs", 0, 9)
        lies = await admin.describe_replica_log_dirs([here, nowhere, away])
        source = lies[here].current
        (target,) = {*side.disks} - {source}
        notes.append(outcomes(lies, lambda found: (found.current_lag, found.future, found.future_lag)))
        moved = {here: target, nowhere: target, away: target, TopicPartitionReplica("logs", 1, 0): "/no/disk"}
        notes.append(outcomes(await admin.alter_replica_log_dirs(moved)))

        async def is_moved() -> bool:
            return (await admin.describe_replica_log_dirs([here]))[here].current == target

        await until(is_moved)
        return notes

    sides.same(scenario)


def test_the_cluster_and_its_leaders(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        await admin.create_topic("led", partitions=2, replication_factor=1)
        cluster = await admin.describe_cluster(authorized_operations=True)
        plain = await admin.describe_cluster()
        assert (cluster.brokers, cluster.cluster_id, cluster.controller_id) == (
            plain.brokers, plain.cluster_id, plain.controller_id,
        )  # fmt: skip
        assert plain.authorized_operations is None
        features = await admin.describe_features()
        notes: list[Any] = [cluster.authorized_operations, features.finalized, features.supported]
        update = {"metadata.version": FeatureUpdate(3), "no.such": FeatureUpdate(1)}
        notes.append(outcomes(await admin.update_features(update)))
        known, unknown, nope = *tps("led", 0, 7), TopicPartition("nope", 0)
        for kind in ElectionType:
            notes.append(outcomes(await admin.elect_leaders(kind, [known, unknown, nope])))
            notes.append(outcomes(await admin.elect_leaders(kind)))
        await admin.elect_preferred_leaders()
        targets = {known: [0], TopicPartition("led", 1): [9], unknown: [0], nope: None}
        notes.append(outcomes(await admin.alter_partition_reassignments(targets)))
        notes.append(outcomes(await admin.alter_partition_reassignments({known: None})))
        notes += [
            await admin.list_partition_reassignments(),
            await admin.list_partition_reassignments([known]),
        ]
        for call in (
            admin.describe_metadata_quorum(),
            admin.unregister_broker(0),
            admin.list_client_metrics_resources(),
        ):
            with pytest.raises(errors.UnsupportedVersionError):
                await call
        return notes

    sides.same(scenario)


def test_acls_and_quotas_are_managed(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        entry = Entry("User:carl", "*", Operation.READ, Permission.ALLOW)
        binding = AclBinding(ResourcePattern(ResourceType.TOPIC, "orders"), entry)
        wrong = binding._replace(entry=binding.entry._replace(principal="carl"))
        made = [await admin.create_acls([wrong]), await admin.create_acls([binding])]
        notes: list[Any] = [list(map(outcomes, made))]

        async def there() -> bool:
            return await admin.describe_acls() == [binding]

        await until(there)
        confluent = Confluent({"bootstrap.servers": side.bootstrap})
        everything = AclBindingFilter(
            ConfluentResourceType.ANY, None, ResourcePatternType.ANY, None, None,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        notes.append([acl.principal for acl in confluent.describe_acls(everything).result(30)])
        filters = [
            AclFilter(PatternFilter(ResourceType.TOPIC, "orders"), EntryFilter()),
            AclFilter(PatternFilter(ResourceType.GROUP), EntryFilter()),
        ]
        removed = await admin.delete_acls(filters)
        notes.append([sorted(found) for found in removed.raise_first().values()])

        entities = {
            QuotaEntity({"user": "carl"}): {"producer_byte_rate": 1000.0, "request_percentage": 50.0},
            QuotaEntity({"user": None, "client-id": "x"}): {"consumer_byte_rate": 2000.0},
            QuotaEntity({"ip": "10.0.0.1"}): {"producer_byte_rate": 1.0},
        }
        notes.append(outcomes(await admin.alter_client_quotas(entities, validate_only=True)))
        assert await admin.describe_client_quotas() == {}
        notes.append(outcomes(await admin.alter_client_quotas(entities)))

        async def limited() -> bool:
            return len(await admin.describe_client_quotas()) == 2

        await until(limited)
        notes.append(await admin.describe_client_quotas())
        notes.append(await admin.describe_client_quotas({"user": ANY}, strict=True))
        notes.append(await admin.describe_client_quotas({"user": ANY}))
        notes.append(await admin.describe_client_quotas({"user": None}))
        await admin.alter_client_quota({"user": "carl"}, {"producer_byte_rate": None})

        alterations = [
            ScramUpsertion("carl", "SCRAM-SHA-256", "secret", 5000),
            ScramUpsertion("carl", "SCRAM-SHA-512", "secret"),
            ScramUpsertion("dora", "SCRAM-SHA-256", "secret", 100),
            ScramDeletion("emil", "SCRAM-SHA-512"),
        ]
        notes.append(outcomes(await admin.alter_user_scram_credentials(alterations)))

        async def listed() -> bool:
            return bool(await admin.describe_user_scram_credentials())

        await until(listed)
        notes.append(outcomes(await admin.describe_user_scram_credentials()))
        notes.append(outcomes(await admin.describe_user_scram_credentials(["carl", "nobody"])))
        seen = confluent.describe_user_scram_credentials(["carl"])["carl"].result(30)
        notes.append([info.iterations for info in seen.scram_credential_infos])
        return notes

    sides.same(scenario)


def test_delegation_tokens(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        with pytest.raises(errors.DelegationTokenRequestNotAllowedError):
            await admin.create_delegation_token()
        async with AdminClient(side.logged_in) as bert:
            token = await bert.create_delegation_token(renewers=["User:anna"], max_lifetime_ms=3_600_000)
            assert await bert.describe_delegation_tokens() == (token,)
            others = await bert.describe_delegation_tokens(["User:anna"])
            renewed = await bert.renew_delegation_token(token.hmac, period_ms=600_000)
            with pytest.raises(errors.DelegationTokenNotFoundError):
                await bert.renew_delegation_token(b"none")
            assert abs(renewed - time.time() * 1000 - 600_000) < 60_000
            await bert.expire_delegation_token(token.hmac)

            async def gone() -> bool:
                return not await bert.describe_delegation_tokens()

            await until(gone)
            lives = token.expires_at_most_ms - token.issued_ms
            return [token.owner, token.requester, token.renewers, lives, others == (token,)]

    assert sides.same(scenario)[0] == "User:bert"


def test_ottla_tokens_and_kafkas_tool_list_the_same_tokens(sides: Sides, tmp_path: Path) -> None:
    for name, side in sides.by_name.items():
        config = tmp_path / f"{name.split()[0]}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in side.logged_in.items()))

        def ottla(*words: str, config: Path = config) -> Any:
            arguments = ["tokens", *words, "--command-config", str(config), "-o", "json"]
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 0, result.output
            return json.loads(result.stdout)

        made = ottla("create", "--renewer", "User:anna", "--max-lifetime", "3600000")
        assert (made["owner"], made["renewers"]) == ("User:bert", ["User:anna"])
        renewed = ottla("renew", made["hmac"], "--period", "600000")["expires_ms"]
        assert renewed - time.time() * 1000 == pytest.approx(600_000, abs=120_000)
        tool = "org.apache.kafka.tools.DelegationTokenCommand"
        bootstrap = str(side.logged_in["bootstrap.servers"])
        words = ["--bootstrap-server", bootstrap, "--command-config", str(config)]
        expire = ["--expire", "--hmac", made["hmac"], "--expiry-time-period", "-1"]
        described, _, _ = run_all(
            [
                Command(tool, [*words, "--describe", "--owner-principal", "User:bert"], "", made["token_id"]),
                Command(tool, [*words, *expire]),
                Command(tool, [*words, "--describe"], "", rf"^(?!.*{made['token_id']})"),
            ],
            tmp_path,
        )
        assert made["hmac"] in described.out
        assert made["expires_at_most"][:16] in described.out
        assert [row["token_id"] for row in ottla("list")] == []


def test_ottla_reassign_moves_replicas_between_log_directories(sides: Sides, tmp_path: Path) -> None:
    for name, side in sides.by_name.items():
        env = {"OTTLA_BOOTSTRAP": side.bootstrap}

        def ottla(*words: str, env: dict[str, str] = env) -> Any:
            result = CliRunner(env=env).invoke(main, [*words, "-o", "json"])
            assert result.exit_code == 0, result.output
            return json.loads(result.stdout)

        ottla("topics", "create", "on-disk", "--partitions", "2")
        (before,) = {
            row["directory"]
            for row in ottla("cluster", "disks", "--topic", "on-disk")
            if row["partition"] == 0
        }
        target = next(disk for disk in side.disks if disk != before)
        broker = ottla("cluster", "describe")["brokers"][0]["broker"]
        row = {"topic": "on-disk", "partition": 0, "replicas": [broker], "log_dirs": [target]}
        plan = tmp_path / f"{name.split()[0]}.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        ottla("reassign", "execute", str(plan), "--log-dir-throttle", "1000000", "--wait")
        states = [row["state"] for row in ottla("reassign", "verify", str(plan))]
        assert states == ["completed", "completed"], name
        words = ["--bootstrap-server", side.bootstrap, "--verify", "--reassignment-json-file", str(plan)]
        tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        (verified,) = run_all([Command(tool, words)], tmp_path)
        assert "Reassignment of replica on-disk-0-" in verified.out
        assert "completed successfully" in verified.out
        throttled = ottla("configs", "describe", "broker", str(broker))
        assert "replica.alter.log.dirs.io.max.bytes.per.second" not in [each["name"] for each in throttled]
