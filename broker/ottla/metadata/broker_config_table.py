"""The table of broker settings: those of Kafka 3.9, implemented or accepted without effect, and `ottla.*`.

Used by `ottla.metadata.config`. Names, types, defaults, ranges and dynamic update modes are those of Kafka
3.9.1, dumped from its own definitions (a test compares them). Settings that Ottla cannot honour and that are
unsafe to ignore are not in the table: `BrokerConfig` rejects them.
"""

from __future__ import annotations

from ottla.metadata.config_def import (
    NO_EFFECT,
    ConfigDef,
    ConfigKey,
    ConfigType,
    config_table,
    inert_config_table,
)
from ottla.metadata.security_config_table import (
    INERT_SECURITY_CONFIGS,
    SECURITY_CONFIGS,
    ZOOKEEPER_CONFIGS,
)

# The columns are those of `config_table`. A * marks a dynamic setting, cluster-wide or per broker (KIP-226).
_IMPLEMENTED = """
    # identity and listeners
    broker.id INT -1 >=-1 | This broker's id, from 0.
    authorizer.class.name STRING "" | The authorizer: AclAuthorizer, a Python class (module:Class), or none.
    create.topic.policy.class.name CLASS - | A Python class that validates new topics.
    alter.config.policy.class.name CLASS - | A Python class that validates changed settings.
    broker.rack STRING - | The rack (zone) of this broker.
    listeners STRING PLAINTEXT://:9092 | Addresses to listen on: NAME://HOST:PORT, comma-separated.
    advertised.listeners STRING - | Addresses for clients, if they differ from listeners.
    listener.security.protocol.map \
        STRING SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
        | Listener name to security protocol.
    inter.broker.listener.name STRING - | The listener for connections between brokers.
    security.inter.broker.protocol STRING PLAINTEXT PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL
        | Protocol between brokers, unless inter.broker.listener.name is set.
    inter.broker.protocol.version STRING 3.9-IV0 | The version of the protocol between brokers.
    # ZooKeeper
    zookeeper.connect STRING - | HOST:PORT, comma-separated, with an optional /chroot.
    zookeeper.session.timeout.ms INT 18000 | ZooKeeper session timeout.
    zookeeper.connection.timeout.ms INT - | How long to wait for ZooKeeper at start.
    # storage
    log.dir STRING /tmp/kafka-logs | Where logs are kept, if log.dirs is not set.
    log.dirs STRING - | Where logs are kept; several, comma-separated.
    *log.segment.bytes INT 1073741824 >=14 | Size at which a segment rolls.
    *log.roll.ms LONG - | Age at which a segment rolls.
    log.roll.hours INT 168 >=1 | The same in hours.
    *log.roll.jitter.ms LONG - | Random part of log.roll.ms.
    log.roll.jitter.hours INT 0 >=0 | The same in hours.
    *log.retention.ms LONG - | How long records are kept; -1 for ever.
    log.retention.minutes INT - | The same in minutes.
    log.retention.hours INT 168 | The same in hours.
    *log.retention.bytes LONG -1 | Bytes kept per partition; -1 for no limit.
    log.retention.check.interval.ms LONG 300000 >=1 | Interval of the retention check.
    *log.segment.delete.delay.ms LONG 60000 >=0 | Time from removal to deletion of files.
    *log.index.interval.bytes INT 4096 >=0 | Bytes of log per index entry.
    *log.index.size.max.bytes INT 10485760 >=4 | Size of an offset index's file.
    *log.preallocate BOOLEAN false | Allocate a segment's file when it is created.
    *log.cleanup.policy LIST delete compact,delete | delete, compact, or both.
    log.cleaner.enable BOOLEAN true | Whether logs are compacted.
    *log.cleaner.threads INT 1 >=0 | Processes that compact logs.
    *log.cleaner.backoff.ms LONG 15000 >=0 | Pause when there is nothing to compact.
    *log.cleaner.dedupe.buffer.size LONG 134217728 | Memory for the last offsets of keys, 24 bytes each.
    *log.cleaner.io.buffer.load.factor DOUBLE 0.9 | Maximum load factor of that memory.
    *log.cleaner.io.buffer.size INT 524288 >=0 | Bytes read at once when compacting.
    *log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308
        | Bytes that compaction may read and write in a second.
    *log.cleaner.delete.retention.ms LONG 86400000 >=0 | How long tombstones stay.
    *log.cleaner.max.compaction.lag.ms LONG LONG_MAX >=1 | Longest uncompacted time.
    *log.cleaner.min.compaction.lag.ms LONG 0 >=0 | Shortest uncompacted time.
    *log.cleaner.min.cleanable.ratio DOUBLE 0.5 0..1 | Dirty share that starts compaction.
    *num.recovery.threads.per.data.dir INT 1 >=1 | Threads that open a directory's logs.
    *log.flush.interval.messages LONG LONG_MAX >=1 | Messages between forced fsyncs.
    *log.flush.interval.ms LONG - | Milliseconds between forced fsyncs.
    log.flush.scheduler.interval.ms LONG LONG_MAX | Interval of the check for forced fsyncs.
    log.flush.offset.checkpoint.interval.ms INT 60000 >=0 | Recovery point checkpoints.
    log.flush.start.offset.checkpoint.interval.ms INT 60000 >=0 | Log start checkpoints.
    *log.message.timestamp.type STRING CreateTime CreateTime,LogAppendTime
        | CreateTime or LogAppendTime.
    *log.message.timestamp.after.max.ms LONG LONG_MAX >=0 | How far ahead timestamps may be.
    *log.message.timestamp.before.max.ms LONG LONG_MAX >=0 | How far behind timestamps may be.
    *log.message.timestamp.difference.max.ms LONG LONG_MAX >=0 | Deprecated form of the two.
    *log.message.downconversion.enable BOOLEAN true | Serve old fetchers by conversion.
    *message.max.bytes INT 1048588 >=0 | Largest record batch, in bytes.
    *compression.type STRING producer uncompressed,zstd,lz4,snappy,gzip,producer
        | Codec of stored batches.
    *compression.gzip.level INT -1 gzip_level | Level of gzip.
    *compression.lz4.level INT 9 1..17 | Level of lz4.
    *compression.zstd.level INT 3 -131072..22 | Level of zstd.
    *producer.id.expiration.ms INT 86400000 >=1 | When an idle producer's state is dropped.
    # topics
    auto.create.topics.enable BOOLEAN true | Create a topic when a client first requests its metadata.
    delete.topic.enable BOOLEAN true | Whether topics can be deleted.
    num.partitions INT 1 >=1 | Partitions of a new topic, by default.
    default.replication.factor INT 1 | Replicas of a new topic, by default.
    *min.insync.replicas INT 1 >=1 | In-sync replicas that acks=all needs.
    *unclean.leader.election.enable BOOLEAN false
        | Whether a replica outside the ISR can be elected leader, with loss of data.
    # quotas
    quota.window.num INT 11 >=1 | Samples that a client's rate is measured over.
    quota.window.size.seconds INT 1 >=1 | Time that each of those samples spans.
    controller.quota.window.num INT 11 >=1 | The same for changes of topics.
    controller.quota.window.size.seconds INT 1 >=1 | The same for changes of topics.
    replication.quota.window.num INT 11 >=1 | Samples that a throttled replica's rate is measured over.
    replication.quota.window.size.seconds INT 1 >=1 | Time that each of those samples spans.
    # replication
    replica.lag.time.max.ms LONG 30000 | A follower this long behind leaves the ISR.
    replica.selector.class STRING - org.apache.kafka.common.replica.RackAwareReplicaSelector
        | The selector of the replica that a consumer reads from; by default the leader.
    replica.fetch.max.bytes INT 1048576 >=0 | Maximum bytes per partition in a follower's fetch.
    replica.fetch.response.max.bytes INT 10485760 >=0
        | Maximum bytes in the response to a follower's fetch.
    replica.fetch.min.bytes INT 1 | Bytes a follower waits for.
    replica.fetch.wait.max.ms INT 500 | Time a follower waits for them.
    replica.fetch.backoff.ms INT 1000 >=0 | Pause of a fetcher after an error.
    replica.socket.timeout.ms INT 30000 | Timeout of requests between brokers.
    replica.high.watermark.checkpoint.interval.ms LONG 5000 | High watermark checkpoints.
    # controller
    auto.leader.rebalance.enable BOOLEAN true | Elect preferred leaders automatically.
    leader.imbalance.check.interval.seconds LONG 300 >=1 | Interval of the check for leader imbalance.
    leader.imbalance.per.broker.percentage INT 10 | Allowed share of leaders that are not preferred.
    controlled.shutdown.enable BOOLEAN true | Move leaders off before stopping.
    controlled.shutdown.max.retries INT 3 | Attempts of a controlled shutdown.
    controlled.shutdown.retry.backoff.ms LONG 5000 | Pause between these attempts.
    controller.socket.timeout.ms INT 30000 | Timeout of requests to and from the controller.
    # groups
    group.initial.rebalance.delay.ms INT 3000 | Wait for more members of a new group.
    group.min.session.timeout.ms INT 6000 | Shortest session timeout of a member.
    group.max.session.timeout.ms INT 1800000 | Longest session timeout of a member.
    group.max.size INT INT_MAX >=1 | Maximum number of members of a group.
    offset.metadata.max.bytes INT 4096 | Largest metadata of an offset commit.
    offsets.commit.required.acks SHORT -1 | acks of writes to __consumer_offsets.
    offsets.commit.timeout.ms INT 5000 >=1 | How long a commit waits for replicas.
    offsets.load.buffer.size INT 5242880 >=1 | Bytes read at once when loading groups.
    offsets.retention.minutes INT 10080 >=1 | How long offsets of an empty group stay.
    offsets.retention.check.interval.ms LONG 600000 >=1 | Interval of that check.
    offsets.topic.num.partitions INT 50 >=1 | Partitions of __consumer_offsets.
    offsets.topic.replication.factor SHORT 3 >=1 | Replicas of __consumer_offsets.
    offsets.topic.segment.bytes INT 104857600 >=1 | Segment size of __consumer_offsets.
    transaction.state.log.min.isr INT 2 >=1 | min.insync.replicas of __transaction_state.
    transaction.state.log.num.partitions INT 50 >=1 | Partitions of __transaction_state.
    transaction.state.log.replication.factor SHORT 3 >=1 | Replicas of __transaction_state.
    transaction.state.log.segment.bytes INT 104857600 >=1 | Segment size of __transaction_state.
    transaction.state.log.load.buffer.size INT 5242880 >=1
        | Bytes of __transaction_state read at a time when it is loaded.
    transaction.max.timeout.ms INT 900000 >=1 | The longest timeout of a transaction.
    transaction.abort.timed.out.transaction.cleanup.interval.ms INT 10000 >=1
        | Interval of the check for timed out transactions.
    transactional.id.expiration.ms INT 604800000 >=1
        | Time after which an unused transactional id expires.
    transaction.remove.expired.transaction.cleanup.interval.ms INT 3600000 >=1
        | Interval of the check for expired transactional ids.
    *transaction.partition.verification.enable BOOLEAN true
        | Verify a transaction with its coordinator before its first write to a partition (KIP-890).
    offsets.topic.compression.codec INT 0 0..4 | Codec of __consumer_offsets.
    # sockets
    connections.max.idle.ms LONG 600000 | Close connections that are idle this long.
    *max.connections INT INT_MAX >=0 | Maximum number of connections.
    *max.connection.creation.rate INT INT_MAX >=0 | New connections a second.
    *max.connections.per.ip INT INT_MAX >=0 | Connections from one address.
    *max.connections.per.ip.overrides STRING "" | The same for single addresses: HOST:COUNT,…
    queued.max.request.bytes LONG -1 | Memory for all requests; -1 for no limit.
    socket.listen.backlog.size INT 50 >=1 | Pending connections per listener.
    socket.receive.buffer.bytes INT 102400 | SO_RCVBUF; -1 leaves it to the system.
    socket.send.buffer.bytes INT 102400 | SO_SNDBUF; -1 leaves it to the system.
    socket.request.max.bytes INT 104857600 >=1 | Largest request.
    fetch.max.bytes INT 57671680 >=1024 | Largest fetch response.
    max.incremental.fetch.session.cache.slots INT 1000 >=0
        | Maximum number of incremental fetch sessions.
    request.timeout.ms INT 30000 | Timeout of the broker's own requests.
"""

# Accepted without effect, with the reason. The broker logs a warning if one is set.
_WITHOUT_EFFECT = """
    alter.log.dirs.replication.quota.window.num INT 11 >=1
        | the default window is used.
    alter.log.dirs.replication.quota.window.size.seconds INT 1 >=1
        | the default window is used.
    auto.include.jmx.reporter BOOLEAN true | there is no JMX; ottla.http.port serves the metrics.
    *background.threads INT 10 >=1 | background work runs on the event loop and in workers of its own.
    broker.heartbeat.interval.ms INT 2000 | KRaft.
    broker.id.generation.enable BOOLEAN true | broker.id must be set.
    broker.session.timeout.ms INT 9000 | KRaft.
    delete.records.purgatory.purge.interval.requests INT 1
        | a completed operation leaves the purgatory at once.
    eligible.leader.replicas.enable BOOLEAN false | KRaft.
    fetch.purgatory.purge.interval.requests INT 1000 | a completed operation leaves the purgatory at once.
    group.consumer.heartbeat.interval.ms INT 5000 >=1 | KIP-848 needs KRaft.
    group.consumer.max.heartbeat.interval.ms INT 15000 >=1 | KIP-848 needs KRaft.
    group.consumer.max.session.timeout.ms INT 60000 >=1 | KIP-848 needs KRaft.
    group.consumer.max.size INT INT_MAX >=1 | KIP-848 needs KRaft.
    group.consumer.min.heartbeat.interval.ms INT 5000 >=1 | KIP-848 needs KRaft.
    group.consumer.min.session.timeout.ms INT 45000 >=1 | KIP-848 needs KRaft.
    group.consumer.session.timeout.ms INT 45000 >=1 | KIP-848 needs KRaft.
    group.coordinator.append.linger.ms INT 10 >=0 | Kafka's coordinator for KIP-848.
    group.coordinator.rebalance.protocols LIST classic | Kafka's coordinator for KIP-848.
    group.coordinator.threads INT 1 >=1 | Kafka's coordinator for KIP-848.
    group.share.delivery.count.limit INT 5 >=2 | share groups need KRaft.
    group.share.heartbeat.interval.ms INT 5000 >=1 | share groups need KRaft.
    group.share.max.groups SHORT 10 >=1 | share groups need KRaft.
    group.share.max.heartbeat.interval.ms INT 15000 >=1 | share groups need KRaft.
    group.share.max.record.lock.duration.ms INT 60000 >=30000 | share groups need KRaft.
    group.share.max.session.timeout.ms INT 60000 >=1 | share groups need KRaft.
    group.share.max.size SHORT 200 >=10 | share groups need KRaft.
    group.share.min.heartbeat.interval.ms INT 5000 >=1 | share groups need KRaft.
    group.share.min.record.lock.duration.ms INT 15000 >=1000 | share groups need KRaft.
    group.share.min.session.timeout.ms INT 45000 >=1 | share groups need KRaft.
    group.share.partition.max.record.locks INT 200 >=100 | share groups need KRaft.
    group.share.record.lock.duration.ms INT 30000 >=1000 | share groups need KRaft.
    group.share.session.timeout.ms INT 45000 >=1 | share groups need KRaft.
    initial.broker.registration.timeout.ms INT 60000 | KRaft.
    kafka.metrics.polling.interval.secs INT 10 >=1 | Java classes.
    kafka.metrics.reporters LIST "" | Java classes.
    log.dir.failure.timeout.ms LONG 30000 >=1 | KRaft.
    *log.local.retention.bytes LONG -2 >=-2 | tiered storage.
    *log.local.retention.ms LONG -2 >=-2 | tiered storage.
    log.message.format.version STRING 3.0-IV1
        | no effect from inter.broker.protocol.version 3.0 on; its form is checked.
    max.request.partition.size.limit INT 2000 >=1 | of DescribeTopicPartitions, which needs KRaft.
    metadata.log.dir STRING - | KRaft.
    metadata.log.max.record.bytes.between.snapshots LONG 20971520 >=1 | KRaft.
    metadata.log.max.snapshot.interval.ms LONG 3600000 >=0 | KRaft.
    metadata.log.segment.bytes INT 1073741824 >=12 | KRaft.
    metadata.log.segment.ms LONG 604800000 | KRaft.
    metadata.max.idle.interval.ms INT 500 >=0 | KRaft.
    metadata.max.retention.bytes LONG 104857600 | KRaft.
    metadata.max.retention.ms LONG 604800000 | KRaft.
    *metric.reporters LIST "" | Java classes.
    metrics.num.samples INT 2 >=1 | ottla.http.port serves the metrics.
    metrics.recording.level STRING INFO | ottla.http.port serves the metrics.
    metrics.sample.window.ms LONG 30000 >=1 | ottla.http.port serves the metrics.
    *num.io.threads INT 8 >=1 | a broker has one event loop.
    *num.network.threads INT 3 >=1 | a broker has one event loop.
    num.replica.alter.log.dirs.threads INT - | moves between directories run on the event loop.
    *num.replica.fetchers INT 1 | one fetcher for each leader's broker.
    producer.purgatory.purge.interval.requests INT 1000 | a completed operation leaves the purgatory at once.
    queued.max.requests INT 500 >=1 | queued.max.request.bytes bounds the requests in progress.
    replica.socket.receive.buffer.bytes INT 65536 | left to the system.
    reserved.broker.max.id INT 1000 >=0 | broker.id must be set, and any number is allowed.
    socket.connection.setup.timeout.max.ms LONG 30000 | other time-outs bound connections between brokers.
    socket.connection.setup.timeout.ms LONG 10000 | other time-outs bound connections between brokers.
    telemetry.max.bytes INT 1048576 >=1 | clients push no metrics to brokers in ZooKeeper mode.
    zookeeper.max.in.flight.requests INT 10 >=1 | reads in bulk have a bound of their own.
"""

_ASSIGNORS = ",".join(
    f"org.apache.kafka.coordinator.group.assignor.{x}Assignor" for x in ("Uniform", "Range")
)
_INERT = (
    *inert_config_table(_WITHOUT_EFFECT),
    ConfigKey("group.consumer.assignors", ConfigType.LIST, _ASSIGNORS, f"{NO_EFFECT}: KIP-848 needs KRaft."),
)

WITHOUT_EFFECT = frozenset(key.name for key in (*_INERT, *INERT_SECURITY_CONFIGS))

BROKER_CONFIGS = ConfigDef(
    [
        *config_table(_IMPLEMENTED),
        *_INERT,
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
    config_table("""
        *leader.replication.throttled.rate LONG LONG_MAX >=0 | Bytes a second to throttled followers.
        *follower.replication.throttled.rate LONG LONG_MAX >=0 | Bytes a second from throttled leaders.
        *replica.alter.log.dirs.io.max.bytes.per.second LONG LONG_MAX >=0
            | Bytes a second between log directories.
    """)
)
"""Settings of a broker that exist only as dynamic ones (KIP-73, KIP-113)."""

BUILT_IN_POLICIES = ("size", "time")
"""Deletion policies that every broker has. See `ottla.log.deletion.policies`."""

OTTLA_CONFIGS = ConfigDef(
    config_table("""
        ottla.fetch.session.max.partitions INT 100000 >=0
            | Maximum number of partitions in the fetch sessions of all consumers; one session has at most a
            | fifth of that. A consumer with more partitions fetches without a session.
        ottla.fenced BOOLEAN false
            | The process waits for SIGTERM and serves nothing; its files can be examined.
        ottla.http.port INT -1 >=-1
            | The port of /metrics, /healthz and /readyz; 0 is any free port, -1 none.
        ottla.http.host STRING "" | The address to serve them on; empty is every address.
        ottla.metrics.names STRING strimzi strimzi,metrics-reporter,confluent
            | How /metrics spells the names of Kafka's MBeans (docs/reference/metrics.md).
        ottla.request.log.every INT 0 >=0
            | Log one request in so many, rounded up to a multiple of 16, with the phases of its time; 0: no
            | request.
        ottla.tracing.endpoint STRING ""
            | The URL of an OpenTelemetry collector for traces of requests (OTLP over HTTP); empty: no traces.
        ottla.tracing.every INT 1600 >=1
            | Trace one request in so many, rounded up to a multiple of 16.
        ottla.log.deletion.policies LIST size,time deletion_policy_names
            | Policies that name segments to delete, of topics without ottla.deletion.policies.
        ottla.log.deletion.policy.classes LIST "" deletion_policy_names
            | Deletion policies that topics may name besides size and time: module:Class, or an entry point in
            | the group ottla.policies.
    """)
)
