"""The legacy clients' logic: assignments, contents of ZooKeeper nodes, partitions of keys, batches of the
async producer.

The expected values are computed by Java, or are in the documentation of Kafka 0.8.2.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import legacy
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ClientError, ConfigError
from ottla.client.legacy import (
    Blacklist,
    CallbackHandler,
    ConsumerConfig,
    ConsumerRebalanceFailedError,
    ConsumerTimeoutError,
    DefaultDecoder,
    EventHandler,
    FailedToSendMessageError,
    KafkaStream,
    KeyedMessage,
    Producer,
    ProducerClosedError,
    ProducerConfig,
    QueueFullError,
    StringDecoder,
    Whitelist,
)
from ottla.client.legacy.group_nodes import (
    Subscription,
    parse_broker,
    parse_offset,
    parse_registration,
    registration,
)
from ottla.client.legacy.handlers import keyed_messages
from ottla.client.legacy.partition_assignor import ConsumerThreadId, assign, assign_ranges, assignable_topic
from ottla.client.legacy.partitioners import DefaultPartitioner, java_hash
from ottla.client.legacy.streams import PartitionTopicInfo

# --- who reads what ---


def threads(**counts: int) -> list[ConsumerThreadId]:
    return [
        ConsumerThreadId(consumer, number) for consumer, count in counts.items() for number in range(count)
    ]


def owners(strategy: str, partitions: int, **counts: int) -> list[str]:
    """Owners of the partitions of topic `t`, as all consumers compute them; each partition has one owner."""
    shares = {"t": assignable_topic(range(partitions), threads(**counts))}
    decided: dict[TopicPartition, ConsumerThreadId] = {}
    for consumer in counts:
        own = assign(strategy, shares, consumer)
        assert not decided.keys() & own.keys()
        decided |= own
    return [str(decided[TopicPartition("t", partition)]) for partition in range(len(decided))]


def test_five_partitions_are_assigned_to_four_streams_as_in_kafkas_documentation() -> None:
    """Two consumers of two streams and five partitions."""
    assert owners("range", 5, C1=2, C2=2) == ["C1-0", "C1-0", "C1-1", "C2-0", "C2-1"]


def test_streams_are_ordered_by_name_as_text() -> None:
    assert owners("range", 12, a=12)[:4] == ["a-0", "a-1", "a-10", "a-11"]


def test_surplus_consumers_get_no_partition() -> None:
    assert owners("range", 2, a=1, b=1, c=1) == ["a-0", "b-0"]
    assert owners("range", 0, a=1) == []


@given(st.integers(0, 40), st.integers(1, 12))
def test_ranges_leave_nothing_out_and_are_even(partitions: int, takers: int) -> None:
    taken = assign_ranges(range(partitions), range(takers))
    assert list(taken) == list(range(partitions))
    assert list(taken.values()) == sorted(taken.values())
    counts = [list(taken.values()).count(taker) for taker in range(takers)]
    assert max(counts) - min(counts) <= 1


def test_roundrobin_goes_by_javas_hashes() -> None:
    """[t,0] to [t,9] differ in one digit, whose hashes ascend."""
    assert owners("roundrobin", 5, a=1, b=1) == ["a-0", "b-0", "a-0", "b-0", "a-0"]
    shares = {"t": assignable_topic([0], threads(a=1)), "u": assignable_topic([0], threads(a=1, b=1))}
    with pytest.raises(ClientError, match="must have the same topics"):
        assign("roundrobin", shares, "a")


# --- ZooKeeper's nodes ---


def test_a_registration_is_kafkas_byte_for_byte() -> None:
    static = registration(Subscription("static", {"orders": 2}), 1416339832000)
    assert (
        static == b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1416339832000"}'
    )
    by_filter = Subscription("white_list", {"a.*|b": 1})
    assert b'"subscription":{"a.*|b":1},"pattern":"white_list"' in registration(by_filter, 0)
    assert parse_registration("/x", registration(by_filter, 0)) == by_filter


def test_filters_of_registrations_choose_topics() -> None:
    topics = ["orders-1", "orders-2", "__consumer_offsets"]
    allowed = Subscription("white_list", {"orders.*": 3})
    assert allowed.topics(topics, exclude_internal_topics=True) == ["orders-1", "orders-2"]
    assert [str(each) for each in allowed.threads("c", "orders-1")] == ["c-0", "c-1", "c-2"]
    denied = Subscription("black_list", {".*-1": 1})
    assert denied.topics(topics, exclude_internal_topics=True) == ["orders-2"]
    assert denied.topics(topics, exclude_internal_topics=False) == ["orders-2", "__consumer_offsets"]


def test_an_invalid_node_is_an_error_with_its_path() -> None:
    with pytest.raises(ClientError, match="/consumers/g/ids/x"):
        parse_registration("/consumers/g/ids/x", b"{}")
    with pytest.raises(ClientError, match="is not an offset: b'x'"):
        parse_offset("/consumers/g/offsets/t/0", b"x")


def test_brokers_are_found_by_their_protocol() -> None:
    old = b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}'
    assert parse_broker("/b", old, "PLAINTEXT") == ("h", 9092)
    assert parse_broker("/b", old, "SSL") is None
    new = (
        b'{"listener_security_protocol_map":{"IN":"PLAINTEXT","OUT":"SSL"},'
        b'"endpoints":["IN://[::1]:9092","OUT://h:9093"],"host":null,"port":-1,"version":5}'
    )
    assert parse_broker("/b", new, "PLAINTEXT") == ("::1", 9092)
    assert parse_broker("/b", new, "SSL") == ("h", 9093)


def test_a_filters_pattern_is_normalized_as_in_kafka() -> None:
    assert Whitelist(" 'a.*, b' ").regex == "a.*|b"
    assert Whitelist("a,b").matches("b")
    assert not Whitelist("a").matches("ab")
    topics = ["a", "b", "ab", "c"]
    for wanted in (Whitelist("a|c"), Blacklist("a|c")):
        assert [t for t in topics if re.fullmatch(wanted.as_pattern(), t)] == [
            t for t in topics if wanted.allows(t)
        ]
    with pytest.raises(ValueError, match="regular expression"):
        Blacklist("(")


# --- settings ---


def test_settings_are_those_of_0_8_with_its_defaults() -> None:
    config = ProducerConfig.of(
        {"metadata.broker.list": "h:1,i:2", "queue.time": "10", "compression.codec": "2"}
    )
    assert config.metadata_broker_list == (("h", 1), ("i", 2))
    assert (config.producer_type, config.request_required_acks) == ("sync", 0)
    assert (config.message_send_max_retries, config.batch_num_messages) == (3, 200)
    assert (config.queue_buffering_max_ms, config.compression_codec) == (10, "snappy")
    consumer = ConsumerConfig.of(zookeeper_connect="z:1", group_id="g")
    assert (consumer.auto_commit_interval_ms, consumer.auto_offset_reset) == (60_000, "largest")
    assert (consumer.rebalance_backoff_ms, consumer.offsets_storage) == (2_000, "zookeeper")
    assert not consumer.dual_commit_enabled
    assert ConsumerConfig.of(
        zookeeper_connect="z:1", group_id="g", offsets_storage="kafka"
    ).dual_commit_enabled


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zookeeper.connect": "z:1"}, "group.id"),
        ({"group.id": "g"}, "zookeeper.connect.*bootstrap.servers"),
        ({"group.id": "g", "bootstrap.servers": "h:1", "offsets.storage": "zookeeper"}, "needs zookeeper"),
        ({"group.id": "g", "zookeeper.connect": "z:1", "auto.offset.reset": "earliest"}, "smallest, largest"),
        ({"group.id": "g", "zookeeper.connect": "z:1", "auto.commit.enabled": "true"}, "auto.commit.enable?"),
    ],
)
def test_wrong_arguments_are_errors(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsumerConfig.of(settings)


# --- partitions by key ---


def test_hashes_are_javas() -> None:
    """ "polygenelubricants".hashCode() is Integer.MIN_VALUE, whose absolute value Kafka says is 0."""
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("\N{GRINNING FACE}") == 31 * 0xD83D + 0xDE00
    assert java_hash(b"") == 1
    assert java_hash(b"\xff") == 30
    assert java_hash(-7) == -7
    assert java_hash(2**32) == 1
    assert java_hash(-(2**40)) == -256
    partitioner = DefaultPartitioner()
    assert partitioner.partition("polygenelubricants", 7) == 0
    assert partitioner.partition(-7, 4) == 3
    with pytest.raises(TypeError, match=r"partitioner\.class"):
        partitioner.partition(1.5, 4)


# --- the async producer ---


class Batches(EventHandler):
    """A handler that records its batches. While held, it handles as many batches as the test permits."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.closed = False
        self._begun = threading.Semaphore(0)
        self._let = threading.Semaphore(0 if held else 1_000)

    def wait_until_begun(self) -> None:
        """Waits until the handler has begun another batch."""
        assert self._begun.acquire(timeout=60)

    def let(self, batches: int) -> None:
        self._let.release(batches)

    def handle(self, messages: Sequence[KeyedMessage]) -> None:
        self._begun.release()
        assert self._let.acquire(timeout=60)
        self.batches.append([each.message for each in messages])
        if messages[0].message == "bad":
            raise RuntimeError("it cannot be sent")

    def close(self) -> None:
        self.closed = True


def producer(handler: EventHandler, **settings: object) -> Producer:
    return Producer(
        metadata_broker_list="127.0.0.1:1", producer_type="async", event_handler=handler, **settings
    )


def test_batches_are_sent_when_full_at_the_interval_and_at_close() -> None:
    handler = Batches(held=True)
    sending = producer(handler, batch_num_messages=3, queue_time=50)
    sending.send(KeyedMessage("t", "a"))
    handler.wait_until_begun()  # its time was over
    for value in ("bad", "b", "c", "d"):
        sending.send(KeyedMessage("t", value))
    handler.let(2)
    handler.wait_until_begun()
    handler.wait_until_begun()  # the time of "d"
    sending.send(KeyedMessage("t", "e"), KeyedMessage("t", "f"))
    handler.let(2)
    sending.close()
    assert handler.batches == [["a"], ["bad", "b", "c"], ["d"], ["e", "f"]]
    assert handler.closed
    with pytest.raises(ProducerClosedError):
        sending.send(KeyedMessage("t", "g"))


def test_a_full_queue_drops_or_blocks_by_its_setting() -> None:
    handler = Batches(held=True)
    sending = producer(
        handler, queue_size=2, batch_size=1, queue_enqueue_timeout_ms=20, queue_buffering_max_ms=0
    )
    sending.send(KeyedMessage("t", "a"))
    handler.wait_until_begun()  # no more in the queue
    with pytest.raises(QueueFullError, match=r"queue\.buffering\.max\.messages=2"):
        sending.send(*(KeyedMessage("t", value) for value in "bcd"))
    handler.let(3)
    sending.close()
    assert handler.batches == [["a"], ["b"], ["c"]]


def test_an_error_of_zookeeper_without_a_text_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kazoo.exceptions import ConnectionLoss

    class Away:
        """A registry whose ZooKeeper is unreachable; kazoo's errors have no text."""

        def __init__(self, *given: object) -> None: ...

        def register(self, subscription: Subscription) -> None: ...

        def brokers(self) -> list[tuple[str, int]]:
            raise ConnectionLoss

        def close(self) -> None: ...

    monkeypatch.setattr("ottla.client.legacy.zookeeper_coordination.ConsumerRegistry", Away)
    caplog.set_level("INFO")
    settings = {"zookeeper.connect": "here:2181", "group.id": "g", "rebalance.backoff.ms": "0"}
    with (
        legacy.ConsumerConnector(settings) as connector,
        pytest.raises(ConsumerRebalanceFailedError, match="4 tries: ConnectionLoss"),
    ):
        connector.create_message_streams({"t": 1})
    assert "a rebalance failed: ConnectionLoss" in caplog.text


class Deliveries:
    """A fake producer: `fails` says whether messages fail, `left` has the topics that were to change their
    partition."""

    def __init__(self, settings: object) -> None:
        self.fails = False
        self.left: list[str] = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def flush(self) -> None: ...

    def send(self, topic: str, *given: object, **more: object) -> Future[None]:
        future: Future[None] = Future()
        if self.fails:
            future.set_exception(ClientError("its leader has gone"))
        else:
            future.set_result(None)
        return future

    def leave_partition(self, topic: str) -> None:
        self.left.append(topic)


def test_messages_without_a_key_leave_a_partition_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Deliveries] = []

    def behind(settings: object) -> Deliveries:
        made.append(Deliveries(settings))
        return made[-1]

    monkeypatch.setattr("ottla.client.legacy.producer.BlockingProducer", behind)
    with Producer(metadata_broker_list="127.0.0.1:1", topic_metadata_refresh_interval_ms=-1) as sending:
        sending.send(KeyedMessage("t", b"a"), KeyedMessage("u", b"a"))
        sending.send(KeyedMessage("t", b"b"))
        assert made[0].left == []
        made[0].fails = True
        with pytest.raises(FailedToSendMessageError):
            sending.send(KeyedMessage("t", b"c"))
        made[0].fails = False
        assert made[0].left == []
        sending.send(KeyedMessage("u", b"d"), KeyedMessage("t", b"d"), KeyedMessage("t", b"e"))
        sending.send(KeyedMessage("t", b"f"))
        assert made[0].left == ["t"]


class Hooks(CallbackHandler):
    def __init__(self) -> None:
        self.added: list[tuple[str, bool]] = []
        self.settings: object = None

    def init(self, settings: object) -> None:
        self.settings = settings

    def before_enqueue(self, message: KeyedMessage) -> KeyedMessage:
        return message._replace(message=message.message.upper())

    def after_enqueue(self, message: KeyedMessage, added: bool) -> None:
        self.added.append((message.message, added))

    def after_dequeuing_existing_data(self, message: KeyedMessage) -> Sequence[KeyedMessage]:
        return [message, message] if message.message == "B" else [message]

    def last_batch_before_close(self) -> Sequence[KeyedMessage]:
        return [KeyedMessage("t", "last")]

    def close(self) -> None:
        self.added.append(("closed", True))


def test_callbacks_see_messages_before_they_are_sent() -> None:
    handler, hooks = Batches(), Hooks()
    with producer(handler, callback_handler=hooks) as sending:
        sending.send(KeyedMessage("t", "a"), KeyedMessage("t", "b"))
    assert handler.batches == [["A", "B", "B", "last"]]
    assert hooks.added == [("A", True), ("B", True), ("closed", True)]
    assert hooks.settings == {
        "metadata.broker.list": "127.0.0.1:1",
        "producer.type": "async",
        "callback.handler": hooks,
    }


# --- streams ---


def stream(chunks_max: int = 2, timeout_ms: int = 0) -> KafkaStream:
    return KafkaStream(
        chunks_max=chunks_max,
        timeout_ms=timeout_ms,
        key_decoder=DefaultDecoder(),
        value_decoder=StringDecoder(),
    )


def records(first: int, count: int) -> list[ConsumerRecord]:
    return [
        ConsumerRecord("t", 0, offset, 0, 0, None, b"%d" % offset) for offset in range(first, first + count)
    ]


def test_only_messages_that_a_stream_returned_are_consumed() -> None:
    given_out = stream()
    progress = PartitionTopicInfo(TopicPartition("t", 0), given_out, None)
    room: list[str] = []
    assert given_out.put(progress, records(5, 2), lambda: room.append("room"))
    assert not given_out.put(progress, records(7, 2), lambda: room.append("room"))
    assert progress.consumed_offset == 5
    assert [next(given_out).message, next(given_out).offset] == ["5", 6]
    assert progress.consumed_offset == 7
    assert room == ["room"]
    assert next(given_out).offset == 7
    given_out.clear()
    with pytest.raises(ConsumerTimeoutError, match=r"consumer\.timeout\.ms=0"):
        next(given_out)
    assert progress.consumed_offset == 8
    given_out.fail(ClientError("it is corrupt"))
    with pytest.raises(ClientError, match="it is corrupt"):
        next(given_out)
    assert given_out.put(progress, records(8, 1), lambda: None)
    given_out.end()
    assert [each.message for each in given_out] == ["8"]


# --- Kafka 0.7's forms ---


def test_a_producers_brokers_are_named_as_in_0_7_or_0_8_or_by_zookeeper() -> None:
    of = legacy.ProducerConfig.of
    named = of({"broker.list": "0:host:9092,17:other:9093,plain:1"}).metadata_broker_list
    assert named == (("host", 9092), ("other", 9093), ("plain", 1))
    assert of({"broker.list": "1:[::1]:9092"}).metadata_broker_list == (("::1", 9092),)
    by_zookeeper = of({"zk.connect": "zk:2181/chroot", "zk.sessiontimeout.ms": "400"})
    assert by_zookeeper.zookeeper_connect == "zk:2181/chroot"
    assert by_zookeeper.zookeeper_session_timeout_ms == 400
    with pytest.raises(ConfigError, match="cannot be set together"):
        of({"broker.list": "0:host:9092", "zk.connect": "zk:2181"})
    with pytest.raises(ConfigError, match="connect must be set"):
        of({})
    for wrong in ("a:host:9092", "0:host", "0:1:host:9092"):
        with pytest.raises(ConfigError, match="is not host:port"):
            of({"broker.list": wrong})


def test_a_producers_arguments_become_keyed_messages() -> None:
    one, two = legacy.Message(b"1"), legacy.Message(b"2", b"k")
    data = legacy.ProducerData("t", "key", [one, two])
    keyed = [KeyedMessage("t", one, part_key="key"), KeyedMessage("t", two, part_key="key")]
    plain = [KeyedMessage("t", one), KeyedMessage("t", two)]
    for arguments, expected in (
        ((data,), keyed), (([data],), keyed), (([data, keyed[0]], keyed[1]), [*keyed, *keyed]),
        ((each for each in [data]), keyed),
        (("t", legacy.MessageSet(one, two)), plain), (("t", [one, two]), plain), (("t", (one, two)), plain),
        (("t", one), plain[:1]), (("t", b"x"), [KeyedMessage("t", b"x")]), (([],), []),
    ):  # fmt: skip
        assert keyed_messages(list(arguments)) == expected
    for wrong, reported in (
        (("t",), "send.topic, messages."), ((b"x",), "bytes cannot"), ((one,), "Message cannot"),
        ((["a", "b"],), "has no topic"), ((7,), "int cannot"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=reported):
            keyed_messages(wrong)


# --- the package ---


def test_every_name_of_the_documents_table_exists() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/client-older.md").read_text()
    rows = re.findall(r"^\| `.*\| (.*) \|$", page.partition("## Names")[2], re.MULTILINE)
    named = {name for cell in rows for name in re.findall(r"`(\w[\w.]*)`", cell)} - {"version_id"}
    assert len(named) > 40, "the table was not found"
    for name in named:
        owner, _, member = name.partition(".")
        assert hasattr(getattr(legacy, owner), member or "__doc__"), name
    offered = {name.partition(".")[0] for name in named}
    assert set(legacy.__all__) - offered == {
        "ConsumerConfig", "Decoder", "DefaultDecoder", "Encoder", "FetchRequest", "OffsetRequest",
        "ProducerConfig", "TopicFilter",
    } - offered  # fmt: skip


@pytest.mark.parametrize("name", legacy.__all__)
def test_everything_public_in_legacy_has_a_docstring(name: str) -> None:
    offered = getattr(legacy, name)
    if not inspect.isclass(offered):
        return
    members = {n: m for n, m in vars(offered).items() if not n.startswith("_")}
    documented = [m for m in members.values() if inspect.isfunction(m) or isinstance(m, property)]
    assert inspect.getdoc(offered)
    assert [member for member in documented if not inspect.getdoc(member)] == []


def test_kazoo_is_imported_only_for_zookeeper_coordination() -> None:
    script = (
        "import sys, ottla.client.legacy as legacy; [getattr(legacy, name) for name in legacy.__all__]; "
        "sys.exit('kazoo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
