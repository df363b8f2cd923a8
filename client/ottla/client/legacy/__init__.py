"""The client classes of Kafka 0.7 to 0.10: `SimpleConsumer`, `Producer` (sync and async),
`ConsumerConnector`.

For code that was written for them, and for consumer groups with members of that age. They use the current
client internally, and block; new code uses `ottla.client` or `ottla.client.blocking`. Names, settings and
defaults are those of Kafka 0.8.2, in Python's spelling (docs/guides/client-older.md has the table). ZooKeeper
coordinates a `ConsumerConnector` with zookeeper.connect; kazoo is imported in this case only.

    from ottla.client.legacy import KeyedMessage, Producer, SimpleConsumer, ConsumerConnector
"""

from __future__ import annotations

from ottla.client.legacy.configs import ConsumerConfig, ProducerConfig
from ottla.client.legacy.connector import Consumer, ConsumerConnector
from ottla.client.legacy.encoders import (
    Decoder,
    DefaultDecoder,
    DefaultEncoder,
    Encoder,
    NullEncoder,
    StringDecoder,
    StringEncoder,
)
from ottla.client.legacy.errors import (
    ConsumerRebalanceFailedError,
    ConsumerTimeoutError,
    FailedToSendMessageError,
    MessageStreamsExistError,
    ProducerClosedError,
    QueueFullError,
)
from ottla.client.legacy.handlers import (
    CallbackHandler,
    ConsumerRebalanceListener,
    EventHandler,
    KeyedMessage,
    ProducerData,
)
from ottla.client.legacy.message_sets import ByteBufferMessageSet, Message, MessageAndOffset, MessageSet
from ottla.client.legacy.partitioners import ByteArrayPartitioner, DefaultPartitioner, Partitioner
from ottla.client.legacy.producer import Producer
from ottla.client.legacy.simple_consumer import SimpleConsumer
from ottla.client.legacy.simple_requests import (
    EARLIEST_TIME,
    LATEST_TIME,
    BuiltFetchRequest,
    FetchRequest,
    FetchRequestBuilder,
    MultiFetchResponse,
    OffsetRequest,
)
from ottla.client.legacy.streams import KafkaStream, MessageAndMetadata
from ottla.client.legacy.topic_filters import Blacklist, TopicFilter, Whitelist

__all__ = [
    "EARLIEST_TIME",
    "LATEST_TIME",
    "Blacklist",
    "BuiltFetchRequest",
    "ByteArrayPartitioner",
    "ByteBufferMessageSet",
    "CallbackHandler",
    "Consumer",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerRebalanceFailedError",
    "ConsumerRebalanceListener",
    "ConsumerTimeoutError",
    "Decoder",
    "DefaultDecoder",
    "DefaultEncoder",
    "DefaultPartitioner",
    "Encoder",
    "EventHandler",
    "FailedToSendMessageError",
    "FetchRequest",
    "FetchRequestBuilder",
    "KafkaStream",
    "KeyedMessage",
    "Message",
    "MessageAndMetadata",
    "MessageAndOffset",
    "MessageSet",
    "MessageStreamsExistError",
    "MultiFetchResponse",
    "NullEncoder",
    "OffsetRequest",
    "Partitioner",
    "Producer",
    "ProducerClosedError",
    "ProducerConfig",
    "ProducerData",
    "QueueFullError",
    "SimpleConsumer",
    "StringDecoder",
    "StringEncoder",
    "TopicFilter",
    "Whitelist",
]
