"""Error codes: number, retriability and message."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage


def test_codes_are_integers_with_a_message() -> None:
    assert ErrorCode(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert int(ErrorCode.UNKNOWN_SERVER_ERROR) == -1
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.MESSAGE_TOO_LARGE.retriable
    assert {code.value for code in ErrorCode} == set(range(-1, 128))


def test_every_message_is_unique() -> None:
    texts = [code.message for code in ErrorCode]
    assert len(set(texts)) == len(texts)
    assert all(text[0].isupper() or text[0].islower() for text in texts)
    assert all(text.endswith(".") or text.startswith("acks") for text in texts)


def test_a_code_of_a_later_kafka_is_unknown() -> None:
    with pytest.raises(ValueError, match="999"):
        ErrorCode(999)
    assert ErrorCode.of(999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_error_shows_its_code_and_detail() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "retention.ms: not a number")
    assert str(error) == "INVALID_CONFIG: retention.ms: not a number"
    assert KafkaError(ErrorCode.NONE).message == ErrorCode.NONE.message
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message) == (error.code, error.message)


def test_a_malformed_message_error_names_the_field_and_the_position() -> None:
    assert str(MalformedMessage("X v1", "name: null", 4)) == "malformed X v1: name: null (at byte 4)"
    assert str(MalformedMessage("X v1", "name: null")) == "malformed X v1: name: null"


def test_importing_all_messages_compiles_nothing() -> None:
    script = (
        "import builtins, time\n"
        "import ottla.protocol.types\n"
        "calls = []\n"
        "real = builtins.exec\n"
        "builtins.exec = lambda *given: (calls.append(given), real(*given))[1]\n"
        "start = time.process_time()\n"
        "from ottla.protocol import messages\n"
        "took_s = time.process_time() - start\n"
        "ours = [given for given in calls if isinstance(given[0], str)]\n"
        "assert not ours, ours\n"
        "assert not messages.FetchRequest._decoders\n"
        "print(took_s)\n"
    )
    took_s = []
    for _ in range(5):  # from the second time on with bytecode cached, and one of them at a quiet moment
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        took_s.append(float(done.stdout))
    assert min(took_s) < 0.1
