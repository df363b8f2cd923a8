"""The settings of Kafka 3.9 that Ottla acts on: one table for brokers, one for topics.

Called by `ottla.metadata.config`. Names, types, defaults and ranges are Kafka 3.9.1's, dumped from its own
definitions. What Kafka knows and Ottla does not act on yet is named in `WITHOUT_EFFECT`, so that it is told
apart from a misspelt name; what would weaken security if it were ignored is refused by `BrokerConfig`.
"""

from __future__ import annotations

from ottla.metadata.config_def import ConfigDef, ConfigKey, ConfigType, Rule, at_least, between, one_of

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
LONG_MAX = str(2**63 - 1)
INT_MAX = str(2**31 - 1)

_compression = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_cleanup = one_of("compact", "delete")
_timestamps = one_of("CreateTime", "LogAppendTime")

TOPIC_CONFIGS = ConfigDef(
    [
        K("cleanup.policy", LIST, "delete", "Delete old segments, compact by key, or both.", _cleanup),
        K(
            "compression.type",
            STRING,
            "producer",
            "Codec of stored batches; `producer` keeps theirs.",
            _compression,
        ),
        K("compression.gzip.level", INT, "-1", "Level of gzip when the broker compresses.", between(-1, 9)),
        K("compression.lz4.level", INT, "9", "Level of lz4 when the broker compresses.", between(1, 17)),
        K(
            "compression.zstd.level",
            INT,
            "3",
            "Level of zstd when the broker compresses.",
            between(-131072, 22),
        ),
        K(
            "delete.retention.ms",
            LONG,
            "86400000",
            "How long tombstones stay on compacted topics.",
            at_least(0),
        ),
        K(
            "file.delete.delay.ms",
            LONG,
            "60000",
            "Time between a segment's removal and its file's.",
            at_least(0),
        ),
        K("flush.messages", LONG, LONG_MAX, "Messages between forced fsyncs.", at_least(1)),
        K("flush.ms", LONG, LONG_MAX, "Milliseconds between forced fsyncs.", at_least(0)),
        K(
            "follower.replication.throttled.replicas",
            LIST,
            "",
            "partition:broker pairs throttled on followers, or *.",
        ),
        K("index.interval.bytes", INT, "4096", "Bytes of log per entry of the offset index.", at_least(0)),
        K(
            "leader.replication.throttled.replicas",
            LIST,
            "",
            "partition:broker pairs throttled on leaders, or *.",
        ),
        K("local.retention.bytes", LONG, "-2", "Local part of a tiered log, in bytes.", at_least(-2)),
        K("local.retention.ms", LONG, "-2", "Local part of a tiered log, in milliseconds.", at_least(-2)),
        K("max.compaction.lag.ms", LONG, LONG_MAX, "Longest time a message stays uncompacted.", at_least(1)),
        K("max.message.bytes", INT, "1048588", "Largest record batch, in bytes.", at_least(0)),
        K("message.downconversion.enable", BOOLEAN, "true", "Serve old fetchers by conversion."),
        K("message.format.version", STRING, "3.0-IV1", "Deprecated; has no effect since 3.0."),
        K(
            "message.timestamp.after.max.ms",
            LONG,
            LONG_MAX,
            "How far ahead of us a timestamp may be.",
            at_least(0),
        ),
        K(
            "message.timestamp.before.max.ms",
            LONG,
            LONG_MAX,
            "How far behind us a timestamp may be.",
            at_least(0),
        ),
        K(
            "message.timestamp.difference.max.ms",
            LONG,
            LONG_MAX,
            "Deprecated form of the two above.",
            at_least(0),
        ),
        K("message.timestamp.type", STRING, "CreateTime", "Whose clock stamps the records.", _timestamps),
        K(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            "0.5",
            "Dirty share of a log that starts compaction.",
            between(0, 1),
        ),
        K("min.compaction.lag.ms", LONG, "0", "Shortest time a message stays uncompacted.", at_least(0)),
        K("min.insync.replicas", INT, "1", "In-sync replicas that acks=all needs.", at_least(1)),
        K("preallocate", BOOLEAN, "false", "Allocate a segment's file when it is made."),
        K("remote.log.copy.disable", BOOLEAN, "false", "Tiered storage: stop copying."),
        K("remote.log.delete.on.disable", BOOLEAN, "false", "Tiered storage: delete when disabled."),
        K(
            "remote.storage.enable",
            BOOLEAN,
            "false",
            "Tiered storage; not served by Ottla.",
            Rule("false", lambda v: v is False),
        ),
        K("retention.bytes", LONG, "-1", "Bytes kept per partition; -1 for no limit."),
        K("retention.ms", LONG, "604800000", "Milliseconds kept; -1 for no limit.", at_least(-1)),
        K("segment.bytes", INT, "1073741824", "Size at which a segment rolls.", at_least(14)),
        K("segment.index.bytes", INT, "10485760", "Size of an offset index's file.", at_least(4)),
        K("segment.jitter.ms", LONG, "0", "Random part of segment.ms.", at_least(0)),
        K("segment.ms", LONG, "604800000", "Age at which a segment rolls.", at_least(1)),
        K(
            "unclean.leader.election.enable",
            BOOLEAN,
            "false",
            "May a replica outside the ISR lead, losing data?",
        ),
    ]
)

# Topic setting -> the broker settings it falls back to, first one set wins; with a factor to milliseconds.
TOPIC_SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.downconversion.enable": (("log.message.downconversion.enable", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.difference.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}

BROKER_CONFIGS = ConfigDef(
    [
        # identity and listeners
        K("broker.id", INT, "-1", "This broker's id, from 0.", at_least(-1)),
        K("broker.rack", STRING, None, "The rack (zone) of this broker."),
        K("listeners", STRING, "PLAINTEXT://:9092", "Where to listen: NAME://HOST:PORT, comma-separated."),
        K("advertised.listeners", STRING, None, "What clients are told to connect to, where it differs."),
        K(
            "listener.security.protocol.map",
            STRING,
            "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "Listener name to security protocol.",
        ),
        K("inter.broker.listener.name", STRING, None, "The listener that brokers use among themselves."),
        K(
            "security.inter.broker.protocol",
            STRING,
            "PLAINTEXT",
            "Protocol among brokers where no listener is named.",
            one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        ),
        K(
            "inter.broker.protocol.version",
            STRING,
            "3.9-IV0",
            "The version that brokers speak among themselves.",
        ),
        # ZooKeeper
        K("zookeeper.connect", STRING, None, "HOST:PORT, comma-separated, with an optional /chroot."),
        K(
            "zookeeper.session.timeout.ms",
            INT,
            "18000",
            "After so long without us, ZooKeeper says we are gone.",
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
            "How often retention is looked at.",
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
        K("log.preallocate", BOOLEAN, "false", "Allocate a segment's file when it is made."),
        K("log.cleanup.policy", LIST, "delete", "delete, compact, or both.", _cleanup),
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
        K("log.flush.interval.messages", LONG, LONG_MAX, "Messages between forced fsyncs.", at_least(1)),
        K("log.flush.interval.ms", LONG, None, "Milliseconds between forced fsyncs."),
        K("log.flush.scheduler.interval.ms", LONG, LONG_MAX, "How often fsync is looked at."),
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
        K("log.message.timestamp.type", STRING, "CreateTime", "Whose clock stamps the records.", _timestamps),
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
        K("message.max.bytes", INT, "1048588", "Largest record batch, in bytes.", at_least(0), dynamic=True),
        K("compression.type", STRING, "producer", "Codec of stored batches.", _compression),
        K("compression.gzip.level", INT, "-1", "Level of gzip.", between(-1, 9)),
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
        K("auto.create.topics.enable", BOOLEAN, "true", "Make a topic when a client first names it."),
        K("delete.topic.enable", BOOLEAN, "true", "May topics be deleted?"),
        K("num.partitions", INT, "1", "Partitions of a new topic where none are asked for.", at_least(1)),
        K("default.replication.factor", INT, "1", "Replicas of a new topic where none are asked for."),
        K("min.insync.replicas", INT, "1", "In-sync replicas that acks=all needs.", at_least(1)),
        K(
            "unclean.leader.election.enable",
            BOOLEAN,
            "false",
            "May a replica outside the ISR lead, losing data?",
        ),
        # replication
        K("replica.lag.time.max.ms", LONG, "30000", "A follower this long behind leaves the ISR."),
        K("replica.fetch.max.bytes", INT, "1048576", "Bytes a follower asks for per partition.", at_least(0)),
        K(
            "replica.fetch.response.max.bytes",
            INT,
            "10485760",
            "Bytes a follower asks for in all.",
            at_least(0),
        ),
        K("replica.fetch.min.bytes", INT, "1", "Bytes a follower waits for."),
        K("replica.fetch.wait.max.ms", INT, "500", "Time a follower waits for them."),
        K("replica.fetch.backoff.ms", INT, "1000", "Pause of a fetcher after an error.", at_least(0)),
        K("replica.socket.timeout.ms", INT, "30000", "Time-out of requests among brokers."),
        K("replica.high.watermark.checkpoint.interval.ms", LONG, "5000", "High watermark checkpoints."),
        # controller
        K("auto.leader.rebalance.enable", BOOLEAN, "true", "Give leadership back to preferred replicas."),
        K(
            "leader.imbalance.check.interval.seconds",
            LONG,
            "300",
            "How often that is looked at.",
            at_least(1),
        ),
        K("leader.imbalance.per.broker.percentage", INT, "10", "Share of foreign leaders that is borne."),
        K("controlled.shutdown.enable", BOOLEAN, "true", "Move leaders off before stopping."),
        K("controlled.shutdown.max.retries", INT, "3", "Tries at that."),
        K("controlled.shutdown.retry.backoff.ms", LONG, "5000", "Pause between the tries."),
        K("controller.socket.timeout.ms", INT, "30000", "Time-out of requests to and from the controller."),
        # groups
        K("group.initial.rebalance.delay.ms", INT, "3000", "Wait for more members of a new group."),
        K("group.min.session.timeout.ms", INT, "6000", "Shortest session a member may ask for."),
        K("group.max.session.timeout.ms", INT, "1800000", "Longest session a member may ask for."),
        K("group.max.size", INT, INT_MAX, "Members a group may have.", at_least(1)),
        K("offset.metadata.max.bytes", INT, "4096", "Largest metadata of an offset commit."),
        K("offsets.commit.timeout.ms", INT, "5000", "How long a commit waits for replicas.", at_least(1)),
        K("offsets.load.buffer.size", INT, "5242880", "Bytes read at once when loading groups.", at_least(1)),
        K("offsets.retention.minutes", INT, "10080", "How long offsets of an empty group stay.", at_least(1)),
        K("offsets.retention.check.interval.ms", LONG, "600000", "How often that is looked at.", at_least(1)),
        K("offsets.topic.num.partitions", INT, "50", "Partitions of __consumer_offsets.", at_least(1)),
        K("offsets.topic.replication.factor", SHORT, "3", "Replicas of __consumer_offsets.", at_least(1)),
        K(
            "offsets.topic.segment.bytes",
            INT,
            "104857600",
            "Segment size of __consumer_offsets.",
            at_least(1),
        ),
        K("offsets.topic.compression.codec", INT, "0", "Codec of __consumer_offsets.", between(0, 4)),
        # sockets
        K("connections.max.idle.ms", LONG, "600000", "Close connections that are silent this long."),
        K("socket.listen.backlog.size", INT, "50", "Pending connections per listener.", at_least(1)),
        K("socket.receive.buffer.bytes", INT, "102400", "SO_RCVBUF; -1 leaves it to the system."),
        K("socket.send.buffer.bytes", INT, "102400", "SO_SNDBUF; -1 leaves it to the system."),
        K("socket.request.max.bytes", INT, "104857600", "Largest request.", at_least(1)),
        K("fetch.max.bytes", INT, "57671680", "Largest fetch response.", at_least(1024)),
        K("request.timeout.ms", INT, "30000", "Time-out of requests the broker makes."),
    ]
)

# Settings that Kafka 3.9 has and that are harmless to leave without effect; a line in the log says so.
_WITHOUT_EFFECT = """
    alter.config.policy.class.name auto.include.jmx.reporter background.threads
    broker.id.generation.enable controller.quota.window.num controller.quota.window.size.seconds
    create.topic.policy.class.name delete.records.purgatory.purge.interval.requests
    fetch.purgatory.purge.interval.requests group.consumer.assignors group.consumer.heartbeat.interval.ms
    group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms group.consumer.max.size
    group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
    group.consumer.session.timeout.ms group.coordinator.append.linger.ms
    group.coordinator.rebalance.protocols group.coordinator.threads kafka.metrics.polling.interval.secs
    kafka.metrics.reporters log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.enable
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.threads log.dir.failure.timeout.ms log.local.retention.bytes log.local.retention.ms
    log.message.format.version max.incremental.fetch.session.cache.slots max.request.partition.size.limit
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms num.io.threads
    num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
    num.replica.fetchers offsets.commit.required.acks producer.purgatory.purge.interval.requests
    queued.max.request.bytes queued.max.requests quota.window.num quota.window.size.seconds
    replica.selector.class replica.socket.receive.buffer.bytes replication.quota.window.num
    replication.quota.window.size.seconds reserved.broker.max.id socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms telemetry.max.bytes
    transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
    transaction.partition.verification.enable transaction.remove.expired.transaction.cleanup.interval.ms
    transaction.state.log.load.buffer.size transaction.state.log.min.isr
    transaction.state.log.num.partitions transaction.state.log.replication.factor
    transaction.state.log.segment.bytes transactional.id.expiration.ms zookeeper.max.in.flight.requests
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
