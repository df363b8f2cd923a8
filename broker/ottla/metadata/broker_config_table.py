"""The table of broker settings: those of Kafka 3.9, implemented or accepted without effect, and `ottla.*`.

Used by `ottla.metadata.config`. Names, types, defaults, ranges and dynamic update modes are those of Kafka
3.9.1, dumped from its own definitions (a test compares them). Settings that Ottla cannot honour and that are
unsafe to ignore are not in the table: `BrokerConfig` rejects them.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.metadata.config_def import (
    ConfigDef,
    ConfigKey,
    ConfigType,
    at_least,
    between,
    deletion_policy_names,
    gzip_level,
    one_of,
)
from ottla.metadata.security_config_table import (
    INERT_SECURITY_CONFIGS,
    SECURITY_CONFIGS,
    ZOOKEEPER_CONFIGS,
)
from ottla.metadata.topic_config_table import LONG_MAX, cleanup_policies, compression_types, timestamp_types

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.SHORT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
K = ConfigKey
INT_MAX = str(2**31 - 1)

# Dynamic settings, cluster-wide or per broker (KIP-226).
_DYNAMIC = """
    background.threads compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
    log.cleaner.delete.retention.ms log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
    log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms
    log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleaner.threads
    log.cleanup.policy log.flush.interval.messages log.flush.interval.ms log.index.interval.bytes
    log.index.size.max.bytes log.local.retention.bytes log.local.retention.ms
    log.message.downconversion.enable log.message.timestamp.after.max.ms
    log.message.timestamp.before.max.ms log.message.timestamp.difference.max.ms
    log.message.timestamp.type log.preallocate log.retention.bytes log.retention.ms log.roll.jitter.ms
    log.roll.ms log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate
    max.connections max.connections.per.ip max.connections.per.ip.overrides message.max.bytes
    metric.reporters min.insync.replicas num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.fetchers producer.id.expiration.ms
    transaction.partition.verification.enable unclean.leader.election.enable
"""

# Settings without effect in Ottla: name, type, default (- for none), least value. The broker logs a warning
# if one is set.
_WITHOUT_EFFECT = """
    alter.log.dirs.replication.quota.window.num INT 11 1
    alter.log.dirs.replication.quota.window.size.seconds INT 1 1
    auto.include.jmx.reporter BOOLEAN true
    background.threads INT 10 1
    broker.heartbeat.interval.ms INT 2000
    broker.id.generation.enable BOOLEAN true
    broker.session.timeout.ms INT 9000
    delete.records.purgatory.purge.interval.requests INT 1
    eligible.leader.replicas.enable BOOLEAN false
    fetch.purgatory.purge.interval.requests INT 1000
    group.consumer.heartbeat.interval.ms INT 5000 1
    group.consumer.max.heartbeat.interval.ms INT 15000 1
    group.consumer.max.session.timeout.ms INT 60000 1
    group.consumer.max.size INT 2147483647 1
    group.consumer.min.heartbeat.interval.ms INT 5000 1
    group.consumer.min.session.timeout.ms INT 45000 1
    group.consumer.session.timeout.ms INT 45000 1
    group.coordinator.append.linger.ms INT 10 0
    group.coordinator.rebalance.protocols LIST classic
    group.coordinator.threads INT 1 1
    group.share.delivery.count.limit INT 5 2
    group.share.heartbeat.interval.ms INT 5000 1
    group.share.max.groups SHORT 10 1
    group.share.max.heartbeat.interval.ms INT 15000 1
    group.share.max.record.lock.duration.ms INT 60000 30000
    group.share.max.session.timeout.ms INT 60000 1
    group.share.max.size SHORT 200 10
    group.share.min.heartbeat.interval.ms INT 5000 1
    group.share.min.record.lock.duration.ms INT 15000 1000
    group.share.min.session.timeout.ms INT 45000 1
    group.share.partition.max.record.locks INT 200 100
    group.share.record.lock.duration.ms INT 30000 1000
    group.share.session.timeout.ms INT 45000 1
    initial.broker.registration.timeout.ms INT 60000
    kafka.metrics.polling.interval.secs INT 10 1
    kafka.metrics.reporters LIST ""
    log.dir.failure.timeout.ms LONG 30000 1
    log.local.retention.bytes LONG -2 -2
    log.local.retention.ms LONG -2 -2
    log.message.format.version STRING 3.0-IV1
    max.request.partition.size.limit INT 2000 1
    metadata.log.dir STRING -
    metadata.log.max.record.bytes.between.snapshots LONG 20971520 1
    metadata.log.max.snapshot.interval.ms LONG 3600000 0
    metadata.log.segment.bytes INT 1073741824 12
    metadata.log.segment.ms LONG 604800000
    metadata.max.idle.interval.ms INT 500 0
    metadata.max.retention.bytes LONG 104857600
    metadata.max.retention.ms LONG 604800000
    metric.reporters LIST ""
    metrics.num.samples INT 2 1
    metrics.recording.level STRING INFO
    metrics.sample.window.ms LONG 30000 1
    num.io.threads INT 8 1
    num.network.threads INT 3 1
    num.replica.alter.log.dirs.threads INT -
    num.replica.fetchers INT 1
    producer.purgatory.purge.interval.requests INT 1000
    queued.max.requests INT 500 1
    replica.socket.receive.buffer.bytes INT 65536
    reserved.broker.max.id INT 1000 0
    socket.connection.setup.timeout.max.ms LONG 30000
    socket.connection.setup.timeout.ms LONG 10000
    telemetry.max.bytes INT 1048576 1
    zookeeper.max.in.flight.requests INT 10 1
"""

_IMPLEMENTED = [
    # identity and listeners
    K("broker.id", INT, "-1", "This broker's id, from 0.", at_least(-1)),
    K("authorizer.class.name", STRING, "", "The authorizer: AclAuthorizer, or empty for none."),
    K("create.topic.policy.class.name", ConfigType.CLASS, None, "A Python class that validates new topics."),
    K(
        "alter.config.policy.class.name",
        ConfigType.CLASS,
        None,
        "A Python class that validates changed settings.",
    ),
    K("broker.rack", STRING, None, "The rack (zone) of this broker."),
    K("listeners", STRING, "PLAINTEXT://:9092", "Addresses to listen on: NAME://HOST:PORT, comma-separated."),
    K("advertised.listeners", STRING, None, "Addresses for clients, if they differ from listeners."),
    K(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Listener name to security protocol.",
    ),
    K("inter.broker.listener.name", STRING, None, "The listener for connections between brokers."),
    K(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Protocol between brokers, unless inter.broker.listener.name is set.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    K(
        "inter.broker.protocol.version",
        STRING,
        "3.9-IV0",
        "The version of the protocol between brokers.",
    ),
    # ZooKeeper
    K("zookeeper.connect", STRING, None, "HOST:PORT, comma-separated, with an optional /chroot."),
    K(
        "zookeeper.session.timeout.ms",
        INT,
        "18000",
        "ZooKeeper session timeout.",
    ),
    K("zookeeper.connection.timeout.ms", INT, None, "How long to wait for ZooKeeper at start."),
    # storage
    K("log.dir", STRING, "/tmp/kafka-logs", "Where logs are kept, if log.dirs is not set."),
    K("log.dirs", STRING, None, "Where logs are kept; several, comma-separated."),
    K("log.segment.bytes", INT, "1073741824", "Size at which a segment rolls.", at_least(14)),
    K("log.roll.ms", LONG, None, "Age at which a segment rolls."),
    K("log.roll.hours", INT, "168", "The same in hours.", at_least(1)),
    K("log.roll.jitter.ms", LONG, None, "Random part of log.roll.ms."),
    K("log.roll.jitter.hours", INT, "0", "The same in hours.", at_least(0)),
    K("log.retention.ms", LONG, None, "How long records are kept; -1 for ever."),
    K("log.retention.minutes", INT, None, "The same in minutes."),
    K("log.retention.hours", INT, "168", "The same in hours."),
    K("log.retention.bytes", LONG, "-1", "Bytes kept per partition; -1 for no limit."),
    K(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "Interval of the retention check.",
        at_least(1),
    ),
    K(
        "log.segment.delete.delay.ms",
        LONG,
        "60000",
        "Time from removal to deletion of files.",
        at_least(0),
    ),
    K("log.index.interval.bytes", INT, "4096", "Bytes of log per index entry.", at_least(0)),
    K("log.index.size.max.bytes", INT, "10485760", "Size of an offset index's file.", at_least(4)),
    K("log.preallocate", BOOLEAN, "false", "Allocate a segment's file when it is created."),
    K("log.cleanup.policy", LIST, "delete", "delete, compact, or both.", cleanup_policies),
    K("log.cleaner.enable", BOOLEAN, "true", "Whether logs are compacted."),
    K("log.cleaner.threads", INT, "1", "Processes that compact logs.", at_least(0)),
    K("log.cleaner.backoff.ms", LONG, "15000", "Pause when there is nothing to compact.", at_least(0)),
    K(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "134217728",
        "Memory for the last offsets of keys, 24 bytes each.",
    ),
    K("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", "Maximum load factor of that memory."),
    K("log.cleaner.io.buffer.size", INT, "524288", "Bytes read at once when compacting.", at_least(0)),
    K(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "1.7976931348623157E308",
        "Bytes that compaction may read and write in a second.",
    ),
    K("log.cleaner.delete.retention.ms", LONG, "86400000", "How long tombstones stay.", at_least(0)),
    K("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, "Longest uncompacted time.", at_least(1)),
    K("log.cleaner.min.compaction.lag.ms", LONG, "0", "Shortest uncompacted time.", at_least(0)),
    K(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        "0.5",
        "Dirty share that starts compaction.",
        between(0, 1),
    ),
    K("num.recovery.threads.per.data.dir", INT, "1", "Threads that open a directory's logs.", at_least(1)),
    K("log.flush.interval.messages", LONG, LONG_MAX, "Messages between forced fsyncs.", at_least(1)),
    K("log.flush.interval.ms", LONG, None, "Milliseconds between forced fsyncs."),
    K("log.flush.scheduler.interval.ms", LONG, LONG_MAX, "Interval of the check for forced fsyncs."),
    K(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "Recovery point checkpoints.",
        at_least(0),
    ),
    K(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "Log start checkpoints.",
        at_least(0),
    ),
    K("log.message.timestamp.type", STRING, "CreateTime", "CreateTime or LogAppendTime.", timestamp_types),
    K(
        "log.message.timestamp.after.max.ms",
        LONG,
        LONG_MAX,
        "How far ahead timestamps may be.",
        at_least(0),
    ),
    K(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far behind timestamps may be.",
        at_least(0),
    ),
    K(
        "log.message.timestamp.difference.max.ms",
        LONG,
        LONG_MAX,
        "Deprecated form of the two.",
        at_least(0),
    ),
    K("log.message.downconversion.enable", BOOLEAN, "true", "Serve old fetchers by conversion."),
    K("message.max.bytes", INT, "1048588", "Largest record batch, in bytes.", at_least(0)),
    K("compression.type", STRING, "producer", "Codec of stored batches.", compression_types),
    K("compression.gzip.level", INT, "-1", "Level of gzip.", gzip_level),
    K("compression.lz4.level", INT, "9", "Level of lz4.", between(1, 17)),
    K("compression.zstd.level", INT, "3", "Level of zstd.", between(-131072, 22)),
    K(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "When an idle producer's state is dropped.",
        at_least(1),
    ),
    # topics
    K(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Create a topic when a client first requests its metadata.",
    ),
    K("delete.topic.enable", BOOLEAN, "true", "Whether topics can be deleted."),
    K("num.partitions", INT, "1", "Partitions of a new topic, by default.", at_least(1)),
    K("default.replication.factor", INT, "1", "Replicas of a new topic, by default."),
    K("min.insync.replicas", INT, "1", "In-sync replicas that acks=all needs.", at_least(1)),
    K(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Whether a replica outside the ISR can be elected leader, with loss of data.",
    ),
    # quotas
    K("quota.window.num", INT, "11", "Samples that a client's rate is measured over.", at_least(1)),
    K("quota.window.size.seconds", INT, "1", "Time that each of those samples spans.", at_least(1)),
    K("controller.quota.window.num", INT, "11", "The same for changes of topics.", at_least(1)),
    K("controller.quota.window.size.seconds", INT, "1", "The same for changes of topics.", at_least(1)),
    K(
        "replication.quota.window.num",
        INT,
        "11",
        "Samples that a throttled replica's rate is measured over.",
        at_least(1),
    ),
    K(
        "replication.quota.window.size.seconds",
        INT,
        "1",
        "Time that each of those samples spans.",
        at_least(1),
    ),
    # replication
    K("replica.lag.time.max.ms", LONG, "30000", "A follower this long behind leaves the ISR."),
    K(
        "replica.selector.class",
        STRING,
        None,
        "The selector of the replica that a consumer reads from; by default the leader.",
        one_of("org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    ),
    K(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "Maximum bytes per partition in a follower's fetch.",
        at_least(0),
    ),
    K(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "Maximum bytes in the response to a follower's fetch.",
        at_least(0),
    ),
    K("replica.fetch.min.bytes", INT, "1", "Bytes a follower waits for."),
    K("replica.fetch.wait.max.ms", INT, "500", "Time a follower waits for them."),
    K("replica.fetch.backoff.ms", INT, "1000", "Pause of a fetcher after an error.", at_least(0)),
    K("replica.socket.timeout.ms", INT, "30000", "Timeout of requests between brokers."),
    K("replica.high.watermark.checkpoint.interval.ms", LONG, "5000", "High watermark checkpoints."),
    # controller
    K("auto.leader.rebalance.enable", BOOLEAN, "true", "Elect preferred leaders automatically."),
    K(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "Interval of the check for leader imbalance.",
        at_least(1),
    ),
    K(
        "leader.imbalance.per.broker.percentage",
        INT,
        "10",
        "Allowed share of leaders that are not preferred.",
    ),
    K("controlled.shutdown.enable", BOOLEAN, "true", "Move leaders off before stopping."),
    K("controlled.shutdown.max.retries", INT, "3", "Attempts of a controlled shutdown."),
    K("controlled.shutdown.retry.backoff.ms", LONG, "5000", "Pause between these attempts."),
    K("controller.socket.timeout.ms", INT, "30000", "Timeout of requests to and from the controller."),
    # groups
    K("group.initial.rebalance.delay.ms", INT, "3000", "Wait for more members of a new group."),
    K("group.min.session.timeout.ms", INT, "6000", "Shortest session timeout of a member."),
    K("group.max.session.timeout.ms", INT, "1800000", "Longest session timeout of a member."),
    K("group.max.size", INT, INT_MAX, "Maximum number of members of a group.", at_least(1)),
    K("offset.metadata.max.bytes", INT, "4096", "Largest metadata of an offset commit."),
    K("offsets.commit.required.acks", SHORT, "-1", "acks of writes to __consumer_offsets."),
    K("offsets.commit.timeout.ms", INT, "5000", "How long a commit waits for replicas.", at_least(1)),
    K("offsets.load.buffer.size", INT, "5242880", "Bytes read at once when loading groups.", at_least(1)),
    K("offsets.retention.minutes", INT, "10080", "How long offsets of an empty group stay.", at_least(1)),
    K("offsets.retention.check.interval.ms", LONG, "600000", "Interval of that check.", at_least(1)),
    K("offsets.topic.num.partitions", INT, "50", "Partitions of __consumer_offsets.", at_least(1)),
    K("offsets.topic.replication.factor", SHORT, "3", "Replicas of __consumer_offsets.", at_least(1)),
    K(
        "offsets.topic.segment.bytes",
        INT,
        "104857600",
        "Segment size of __consumer_offsets.",
        at_least(1),
    ),
    K("transaction.state.log.min.isr", INT, "2", "min.insync.replicas of __transaction_state.", at_least(1)),
    K("transaction.state.log.num.partitions", INT, "50", "Partitions of __transaction_state.", at_least(1)),
    K(
        "transaction.state.log.replication.factor",
        SHORT,
        "3",
        "Replicas of __transaction_state.",
        at_least(1),
    ),
    K(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        "Segment size of __transaction_state.",
        at_least(1),
    ),
    K(
        "transaction.state.log.load.buffer.size",
        INT,
        "5242880",
        "Bytes of __transaction_state read at a time when it is loaded.",
        at_least(1),
    ),
    K("transaction.max.timeout.ms", INT, "900000", "The longest timeout of a transaction.", at_least(1)),
    K(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "10000",
        "Interval of the check for timed out transactions.",
        at_least(1),
    ),
    K(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "Time after which an unused transactional id expires.",
        at_least(1),
    ),
    K(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "Interval of the check for expired transactional ids.",
        at_least(1),
    ),
    K(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Verify a transaction with its coordinator before its first write to a partition (KIP-890).",
    ),
    K("offsets.topic.compression.codec", INT, "0", "Codec of __consumer_offsets.", between(0, 4)),
    # sockets
    K("connections.max.idle.ms", LONG, "600000", "Close connections that are idle this long."),
    K("max.connections", INT, INT_MAX, "Maximum number of connections.", at_least(0)),
    K("max.connection.creation.rate", INT, INT_MAX, "New connections a second.", at_least(0)),
    K("max.connections.per.ip", INT, INT_MAX, "Connections from one address.", at_least(0)),
    K("max.connections.per.ip.overrides", STRING, "", "The same for single addresses: HOST:COUNT,…"),
    K("queued.max.request.bytes", LONG, "-1", "Memory for all requests; -1 for no limit."),
    K("socket.listen.backlog.size", INT, "50", "Pending connections per listener.", at_least(1)),
    K("socket.receive.buffer.bytes", INT, "102400", "SO_RCVBUF; -1 leaves it to the system."),
    K("socket.send.buffer.bytes", INT, "102400", "SO_SNDBUF; -1 leaves it to the system."),
    K("socket.request.max.bytes", INT, "104857600", "Largest request.", at_least(1)),
    K("fetch.max.bytes", INT, "57671680", "Largest fetch response.", at_least(1024)),
    K(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Maximum number of incremental fetch sessions.",
        at_least(0),
    ),
    K("request.timeout.ms", INT, "30000", "Timeout of the broker's own requests."),
]


def _without_effect(row: str) -> ConfigKey:
    name, kind, default, *least = row.split()
    text = {"-": None, '""': ""}.get(default, default)
    rule = at_least(int(least[0])) if least else None
    return K(name, ConfigType[kind], text, "Accepted, and without effect in Ottla.", rule)


_ASSIGNORS = ",".join(
    f"org.apache.kafka.coordinator.group.assignor.{x}Assignor" for x in ("Uniform", "Range")
)
_INERT = [
    *map(_without_effect, _WITHOUT_EFFECT.strip().splitlines()),
    K("group.consumer.assignors", LIST, _ASSIGNORS, "Accepted, and without effect in Ottla."),
]

WITHOUT_EFFECT = frozenset(key.name for key in (*_INERT, *INERT_SECURITY_CONFIGS))

BROKER_CONFIGS = ConfigDef(
    [
        *(replace(key, dynamic=key.name in _DYNAMIC.split()) for key in [*_IMPLEMENTED, *_INERT]),
        *SECURITY_CONFIGS,
        *INERT_SECURITY_CONFIGS,
        *ZOOKEEPER_CONFIGS,
    ]
)

_LISTENERS = ("advertised.listeners", "listener.security.protocol.map", "listeners")

PER_BROKER = frozenset(
    (*_LISTENERS, *(key.name for key in (*SECURITY_CONFIGS, *INERT_SECURITY_CONFIGS) if key.dynamic))
)
"""Dynamic settings that can be set for a single broker only (DynamicBrokerConfig.PerBrokerConfigs)."""

QUOTA_CONFIGS = ConfigDef(
    [
        K(
            "leader.replication.throttled.rate",
            LONG,
            LONG_MAX,
            "Bytes a second to throttled followers.",
            at_least(0),
            True,
        ),
        K(
            "follower.replication.throttled.rate",
            LONG,
            LONG_MAX,
            "Bytes a second from throttled leaders.",
            at_least(0),
            True,
        ),
        K(
            "replica.alter.log.dirs.io.max.bytes.per.second",
            LONG,
            LONG_MAX,
            "Bytes a second between log directories.",
            at_least(0),
            True,
        ),
    ]
)
"""Settings of a broker that exist only as dynamic ones (KIP-73, KIP-113)."""

BUILT_IN_POLICIES = ("size", "time")
"""Deletion policies that every broker has. See `ottla.log.deletion.policies`."""

OTTLA_CONFIGS = ConfigDef(
    [
        ConfigKey(
            "ottla.fetch.session.max.partitions",
            ConfigType.INT,
            "100000",
            "Maximum number of partitions in the fetch sessions of all consumers; one session has at most "
            "a fifth of that. A consumer with more partitions fetches without a session.",
            at_least(0),
        ),
        ConfigKey(
            "ottla.http.port",
            ConfigType.INT,
            "-1",
            "The port of /metrics, /healthz and /readyz; 0 is any free port, -1 none.",
            at_least(-1),
        ),
        ConfigKey(
            "ottla.http.host", ConfigType.STRING, "", "The address to serve them on; empty is every address."
        ),
        ConfigKey(
            "ottla.log.deletion.policies",
            ConfigType.LIST,
            "size,time",
            "Policies that name segments to delete, of topics without ottla.deletion.policies.",
            deletion_policy_names,
        ),
        ConfigKey(
            "ottla.log.deletion.policy.classes",
            ConfigType.LIST,
            "",
            "Deletion policies that topics may name besides size and time: module:Class, or an entry point "
            "in the group ottla.policies.",
            deletion_policy_names,
        ),
    ]
)
