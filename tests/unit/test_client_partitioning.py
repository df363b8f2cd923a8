"""Keys have the partitions of the Java client; kafka-python's port of its hash is the oracle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as theirs

from ottla.client.core.partitioners import murmur2, partition_for_key


@given(st.binary(max_size=64))
def test_the_hash_is_that_of_kafkas_clients(key: bytes) -> None:
    assert murmur2(key) == theirs(key) & 0xFFFFFFFF


def test_the_partition_is_the_hash_without_its_sign_over_their_number() -> None:
    assert partition_for_key(b"21", 7) == (murmur2(b"21") & 0x7FFFFFFF) % 7
    assert {partition_for_key(str(n).encode(), 5) for n in range(100)} == {0, 1, 2, 3, 4}
