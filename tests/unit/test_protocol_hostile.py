"""The cost of hostile bytes: memory in proportion to the frame, never to a declared count.

Every message class in every version; `codec` documents the bounds that are measured here.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.codec import decode, decode_from, encode
from ottla.protocol.decoding import compile_decoder
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages import FetchRequest, MetadataRequest, ProduceRequest
from ottla.protocol.types import ZERO_UUID, FieldType, Message, Struct, fields_of
from ottla.protocol.wire import ELEMENTS_MAX, Malformed, write_varint
from tests.protocol_samples import CASES, MESSAGES, RandomChoices, build, case_id, plain
from tests.worlds.traced_memory import peak_of

BYTES_PER_BYTE = 64
SLACK_BYTES = 8192
"""What an exception and its traceback take, and the first few objects."""

HUGE_COUNTS = [
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", 2**24),
    struct.pack(">h", 2**15 - 1),
    struct.pack(">i", -2),
    b"\xff\xff\xff\xff\x0f",  # the largest varint: 2**32 - 1
    b"\x80\x80\x80\x80\x08",  # 2**31, which is a count of 2**31 - 1
    b"\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\x01",
]


@pytest.mark.parametrize("cls", MESSAGES, ids=case_id)
def test_declared_counts_and_lengths_allocate_nothing(cls: type[Message]) -> None:
    generator = random.Random(4)
    for version in range(cls.min_version, cls.max_version + 1):
        encoded = max(
            (encode(build(cls, version, RandomChoices(seed)), version) for seed in range(3)), key=len
        )
        decode(cls, version, encoded)  # compiled before memory is measured
        for at in generator.sample(range(len(encoded)), min(4, len(encoded))):
            for huge in HUGE_COUNTS:
                frame = encoded[:at] + huge + encoded[at + len(huge) :]
                peak = peak_of(lambda: decode_or_refuse(cls, version, frame))  # noqa: B023
                assert peak <= BYTES_PER_BYTE * len(frame) + SLACK_BYTES, (version, at, huge)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_counts_allocate_nothing(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(CASES))
    encoded = encode(build(cls, version, RandomChoices(data.draw(st.integers(0, 3)))), version)
    decode(cls, version, encoded)
    cut = data.draw(st.integers(0, len(encoded)))
    inserted = b"".join(data.draw(st.lists(st.sampled_from(HUGE_COUNTS) | st.binary(max_size=8), max_size=4)))
    frame = encoded[:cut] + inserted + encoded[cut + data.draw(st.sampled_from((0, len(inserted)))) :]
    peak = peak_of(lambda: decode_or_refuse(cls, version, frame))
    assert peak <= BYTES_PER_BYTE * len(frame) + SLACK_BYTES


def decode_or_refuse(cls: type[Message], version: int, frame: bytes) -> None:
    """A message within the frame, or MalformedMessage, which names a field and a byte of the frame."""
    try:
        _, end = decode_from(cls, version, frame)
    except MalformedMessage as problem:
        refusal = problem
    else:
        assert end <= len(frame)
        return
    assert refusal.subject == f"{cls.__name__} v{version}"
    assert 0 <= refusal.position <= len(frame)
    path = re.match(r"(?:ends within )?([\w.\[\]]*(?:<tagged fields>)?)(?:: .|$)", refusal.what)
    assert path, refusal.what
    assert names_a_field(cls, path[1]), refusal.what


def names_a_field(cls: type[Struct], path: str) -> bool:
    name, _, rest = path.partition(".")
    if name == "<tagged fields>":
        return not rest
    item = next((item for item in fields_of(cls) if item.name == name.removesuffix("[]")), None)
    if item is None:
        return False
    kind = item.type.element or item.type
    return not rest or (kind.struct is not None and names_a_field(kind.struct, rest))


@pytest.mark.parametrize("cls", MESSAGES, ids=case_id)
def test_elements_of_the_fewest_bytes_take_bounded_memory(cls: type[Message]) -> None:
    """Each array in turn holds many elements that are as empty as the version allows."""
    turning_points = {cls.min_version, cls.flexible_from - 1, cls.flexible_from, cls.max_version}
    for version in turning_points & set(range(cls.min_version, cls.max_version + 1)):
        for path in array_paths(cls, version):
            frame = encode(crowded(cls, version, path), version)
            decode(cls, version, frame)  # compiled before memory is measured
            peak = peak_of(lambda: decode(cls, version, frame))  # noqa: B023
            assert peak <= BYTES_PER_BYTE * len(frame) + SLACK_BYTES, (version, path)
            peak = peak_of(lambda: decode_or_refuse(cls, version, frame[:-1]))  # noqa: B023
            assert peak <= BYTES_PER_BYTE * len(frame) + SLACK_BYTES, (version, path)


ELEMENTS = 150


def array_paths(cls: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    for item in fields_of(cls):
        if version in item.versions:
            if item.type.wire == "array":
                yield (item.name,)
            struct_type = (item.type.element or item.type).struct
            if struct_type is not None:
                yield from ((item.name, *path) for path in array_paths(struct_type, version))


def crowded(cls: type[Struct], version: int, path: tuple[str, ...] = ()) -> Any:
    """A message with one element in each array on `path`, and many in the last of them."""
    values: dict[str, Any] = {}
    for item in fields_of(cls):
        if version not in item.versions:
            continue
        if path and item.name == path[0]:
            if item.type.element is None:
                assert item.type.struct is not None
                values[item.name] = crowded(item.type.struct, version, path[1:])
            elif len(path) > 1:
                assert item.type.element.struct is not None
                values[item.name] = [crowded(item.type.element.struct, version, path[1:])]
            else:
                values[item.name] = [smallest(item.type.element, version)] * ELEMENTS
        elif item.type.wire == "records":
            values[item.name] = b""  # a view, which is more than None
        else:
            values[item.name] = None if version in item.nullable else smallest(item.type, version)
    return cls(**values)


def smallest(kind: FieldType, version: int) -> Any:
    """A value of the fewest bytes, or of the largest object where sizes are fixed."""
    if kind.struct is not None:
        return crowded(kind.struct, version)
    if kind.wire in ("int32", "uint32", "int64"):
        return 2**30
    zeros: dict[str, Any] = {"array": [], "string": "", "bytes": b"", "uuid": ZERO_UUID, "float64": 0.5}
    return zeros.get(kind.wire, 0)


def test_large_frames_of_too_many_elements_are_refused_before_anything_is_decoded() -> None:
    count = ELEMENTS_MAX + 1
    names = write_varint(count + 1) + b"\x01\x00" * count + bytes(4)
    tags = bytes(4) + write_varint(count) + b"\x7f\x00" * count
    for frame, field in ((names, "topics"), (tags, "<tagged fields>")):
        complaint = rf"MetadataRequest v9: {field}: more than {ELEMENTS_MAX} elements in one message"
        peak = peak_of(lambda: refuse(MetadataRequest, 9, frame, complaint))  # noqa: B023
        assert peak < 1_000_000  # a decoder was compiled


def refuse(cls: type[Message], version: int, frame: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        decode(cls, version, frame)


def test_a_large_frame_of_few_elements_is_decoded() -> None:
    partition = ProduceRequest.PartitionProduceData(records=bytes(ELEMENTS_MAX + 1))
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(partition_data=[partition])])
    for version in (0, 8, 9, 11):
        frame = encode(request, version)
        assert decode(ProduceRequest, version, frame) == request
        refuse(
            ProduceRequest, version, frame[: ELEMENTS_MAX + 10], "records: length 2097153 runs past the end"
        )


def test_elements_are_counted_over_all_levels() -> None:
    request = FetchRequest(
        topics=[FetchRequest.FetchTopic(partitions=[FetchRequest.FetchPartition()] * 3)] * 4,
        forgotten_topics_data=[FetchRequest.ForgottenTopic(partitions=[1, 2, 3, 4])],
    )
    for version in (11, 12):
        frame = encode(request, version)
        decoded, _ = compile_decoder(FetchRequest, version, 4 * (1 + 3) + 1 + 4)(frame, 0, len(frame))
        assert plain(decoded) == plain(decode(FetchRequest, version, frame))
        with pytest.raises(Malformed, match="more than 20 elements in one message"):
            compile_decoder(FetchRequest, version, 20)(frame, 0, len(frame))


def test_a_decoder_that_counts_decodes_the_same() -> None:
    for cls, version in CASES:
        frame = encode(build(cls, version, RandomChoices(5)), version)
        counting = compile_decoder(cls, version, ELEMENTS_MAX)(frame, 0, len(frame))
        assert plain(counting[0]) == plain(decode(cls, version, frame))
        assert counting[1] == len(frame)
