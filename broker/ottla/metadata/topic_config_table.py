"""The table of topic settings of Kafka 3.9, and the broker settings that they fall back to.

Used by `ottla.metadata.config`. Names, types, defaults and ranges are those of Kafka 3.9.1, dumped from its
own definitions (a test compares them); settings with the prefix `ottla.` are Ottla's own.
"""

from __future__ import annotations

from ottla.metadata.config_def import (
    ConfigDef,
    ConfigKey,
    ConfigType,
    Rule,
    at_least,
    between,
    deletion_policy_names,
    gzip_level,
    one_of,
    throttled_replicas,
)

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
K = ConfigKey
LONG_MAX = str(2**63 - 1)

compression_types = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
cleanup_policies = one_of("compact", "delete")
timestamp_types = one_of("CreateTime", "LogAppendTime")

TOPIC_CONFIGS = ConfigDef(
    [
        K(
            "cleanup.policy",
            LIST,
            "delete",
            "Delete old segments, compact by key, or both.",
            cleanup_policies,
        ),
        K(
            "compression.type",
            STRING,
            "producer",
            "Codec of stored batches; `producer` keeps theirs.",
            compression_types,
        ),
        K("compression.gzip.level", INT, "-1", "Level of gzip when the broker compresses.", gzip_level),
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
            throttled_replicas,
        ),
        K("index.interval.bytes", INT, "4096", "Bytes of log per entry of the offset index.", at_least(0)),
        K(
            "leader.replication.throttled.replicas",
            LIST,
            "",
            "partition:broker pairs throttled on leaders, or *.",
            throttled_replicas,
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
            "How far a timestamp may be ahead of the broker's clock.",
            at_least(0),
        ),
        K(
            "message.timestamp.before.max.ms",
            LONG,
            LONG_MAX,
            "How far a timestamp may be behind the broker's clock.",
            at_least(0),
        ),
        K(
            "message.timestamp.difference.max.ms",
            LONG,
            LONG_MAX,
            "Deprecated form of the two above.",
            at_least(0),
        ),
        K("message.timestamp.type", STRING, "CreateTime", "CreateTime or LogAppendTime.", timestamp_types),
        K(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            "0.5",
            "Dirty share of a log that starts compaction.",
            between(0, 1),
        ),
        K("min.compaction.lag.ms", LONG, "0", "Shortest time a message stays uncompacted.", at_least(0)),
        K("min.insync.replicas", INT, "1", "In-sync replicas that acks=all needs.", at_least(1)),
        K(
            "ottla.deletion.policies",
            LIST,
            "size,time",
            "Policies that select segments to delete: size, time, and those of the brokers' "
            "ottla.log.deletion.policy.classes.",
            deletion_policy_names,
        ),
        K("preallocate", BOOLEAN, "false", "Allocate a segment's file when it is created."),
        K("remote.log.copy.disable", BOOLEAN, "false", "Tiered storage: stop copying."),
        K("remote.log.delete.on.disable", BOOLEAN, "false", "Tiered storage: delete when disabled."),
        K(
            "remote.storage.enable",
            BOOLEAN,
            "false",
            "Tiered storage; not served by Ottla.",
            Rule("false", lambda v: v is False, lambda v: "Ottla does not serve tiered storage"),
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
            "Whether a replica outside the ISR can be elected leader, with loss of data.",
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
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.downconversion.enable": (("log.message.downconversion.enable", 1),),
    "message.format.version": (("log.message.format.version", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.difference.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "ottla.deletion.policies": (("ottla.log.deletion.policies", 1),),
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
