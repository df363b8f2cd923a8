"""The table of topic settings of Kafka 3.9, and the broker settings that they fall back to.

Used by `ottla.metadata.config`. Names, types, defaults and ranges are those of Kafka 3.9.1, dumped from its
own definitions (a test compares them); settings with the prefix `ottla.` are Ottla's own.
"""

from __future__ import annotations

from ottla.metadata.config_def import ConfigDef, config_table

TOPIC_CONFIGS = ConfigDef(
    config_table("""
        cleanup.policy LIST delete compact,delete | Delete old segments, compact by key, or both.
        compression.type STRING producer uncompressed,zstd,lz4,snappy,gzip,producer
            | Codec of stored batches; `producer` keeps theirs.
        compression.gzip.level INT -1 gzip_level | Level of gzip when the broker compresses.
        compression.lz4.level INT 9 1..17 | Level of lz4 when the broker compresses.
        compression.zstd.level INT 3 -131072..22 | Level of zstd when the broker compresses.
        delete.retention.ms LONG 86400000 >=0 | How long tombstones stay on compacted topics.
        file.delete.delay.ms LONG 60000 >=0 | Time between a segment's removal and its file's.
        flush.messages LONG LONG_MAX >=1 | Messages between forced fsyncs.
        flush.ms LONG LONG_MAX >=0 | Milliseconds between forced fsyncs.
        follower.replication.throttled.replicas LIST "" throttled_replicas
            | partition:broker pairs throttled on followers, or *.
        index.interval.bytes INT 4096 >=0 | Bytes of log per entry of the offset index.
        leader.replication.throttled.replicas LIST "" throttled_replicas
            | partition:broker pairs throttled on leaders, or *.
        local.retention.bytes LONG -2 >=-2 | Local part of a tiered log, in bytes.
        local.retention.ms LONG -2 >=-2 | Local part of a tiered log, in milliseconds.
        max.compaction.lag.ms LONG LONG_MAX >=1 | Longest time a message stays uncompacted.
        max.message.bytes INT 1048588 >=0 | Largest record batch, in bytes.
        message.downconversion.enable BOOLEAN true | Serve old fetchers by conversion.
        message.format.version STRING 3.0-IV1 | Deprecated; has no effect since 3.0.
        message.timestamp.after.max.ms LONG LONG_MAX >=0
            | How far a timestamp may be ahead of the broker's clock.
        message.timestamp.before.max.ms LONG LONG_MAX >=0
            | How far a timestamp may be behind the broker's clock.
        message.timestamp.difference.max.ms LONG LONG_MAX >=0 | Deprecated form of the two above.
        message.timestamp.type STRING CreateTime CreateTime,LogAppendTime | CreateTime or LogAppendTime.
        min.cleanable.dirty.ratio DOUBLE 0.5 0..1 | Dirty share of a log that starts compaction.
        min.compaction.lag.ms LONG 0 >=0 | Shortest time a message stays uncompacted.
        min.insync.replicas INT 1 >=1 | In-sync replicas that acks=all needs.
        ottla.deletion.policies LIST size,time deletion_policy_names
            | Policies that select segments to delete: size, time, and those of the brokers'
            | ottla.log.deletion.policy.classes.
        preallocate BOOLEAN false | Allocate a segment's file when it is created.
        remote.log.copy.disable BOOLEAN false | Tiered storage: stop copying.
        remote.log.delete.on.disable BOOLEAN false | Tiered storage: delete when disabled.
        remote.storage.enable BOOLEAN false no_tiered_storage | Tiered storage; not served by Ottla.
        retention.bytes LONG -1 | Bytes kept per partition; -1 for no limit.
        retention.ms LONG 604800000 >=-1 | Milliseconds kept; -1 for no limit.
        segment.bytes INT 1073741824 >=14 | Size at which a segment rolls.
        segment.index.bytes INT 10485760 >=4 | Size of an offset index's file.
        segment.jitter.ms LONG 0 >=0 | Random part of segment.ms.
        segment.ms LONG 604800000 >=1 | Age at which a segment rolls.
        unclean.leader.election.enable BOOLEAN false
            | Whether a replica outside the ISR can be elected leader, with loss of data.
    """)
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
