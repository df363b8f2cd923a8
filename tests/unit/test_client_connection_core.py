"""The connection as a state machine: bytes and time in, responses out, without a socket or a loop."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol import frames
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages import (
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from ottla.protocol.types import Message
from ottla.security.mechanisms import SaslFailed
from ottla.wire.connection_state import (
    RENEW_AFTER,
    ConnectionState,
    Event,
    InFlightRequest,
    Lost,
    Phase,
    Ready,
    Send,
    UnsupportedApi,
)
from ottla.wire.framing import READ_BUFFER_BYTES_MAX, ConnectionLost
from ottla.wire.handshake import Login, Prepare, SaslStep

Key = ApiVersionsResponse.ApiVersion
VERSIONS = ApiVersionsResponse(
    api_keys=[
        Key(api_key=1, max_version=11),
        Key(api_key=3, max_version=9),
        Key(api_key=18, max_version=3),
        Key(api_key=36, max_version=1),
    ]
)


def asked(data: bytes) -> list[frames.RequestHeader]:
    """The requests in the sent bytes."""
    headers = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        headers.append(frames.parse_request_header(memoryview(data[4 : 4 + size])))
        data = data[4 + size :]
    return headers


def reply(header: frames.RequestHeader, message: Message, version: int | None = None) -> bytes:
    return frames.encode_response(
        message, header.api_version if version is None else version, header.correlation_id
    )


def feed(connection: ConnectionState, data: bytes, cuts: Sequence[int] = ()) -> list[Event]:
    """Feeds the stream in reads that end at `cuts`. Borrowed responses are read at once."""
    events = []
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    at = 0
    while at < len(data):
        buffer = connection.buffer()
        assert len(buffer), "a read of nothing would be the end of the stream"
        end = min(next(end for end in ends if end > at), at + len(buffer))
        buffer[: end - at] = data[at:end]
        for event in connection.received(end - at):
            if isinstance(event, InFlightRequest) and isinstance(event.response, FetchResponse):
                (part,) = event.response.responses[0].partitions
                if not event.keeps:
                    part.records = bytes(part.records or b"")
            events.append(event)
        at = end
    return events


def send_of(events: Sequence[Event]) -> frames.RequestHeader:
    (event,) = events
    assert isinstance(event, Send)
    (header,) = asked(event.data)
    return header


def opened(login: Login | None = None, limits: dict[int, int] | None = None) -> ConnectionState:
    connection = ConnectionState("broker:9092", "tests", login=login, limits=limits)
    events = feed(connection, reply(send_of(connection.begin(0.0, 10)), VERSIONS))
    if login is None:
        assert events == [Ready()]
    return connection


def metadata(number: int) -> MetadataResponse:
    return MetadataResponse(controller_id=number)


def fetched(number: int, size: int) -> FetchResponse:
    data = FetchResponse.PartitionData(
        partition_index=number, records=bytes([number % 256]) * size, high_watermark=-1
    )
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])])


# --- answers ---


@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 300) | st.sampled_from([66_000, READ_BUFFER_BYTES_MAX + 1]), st.booleans()),
        max_size=6,
    ),
    cuts=st.lists(st.integers(0, 1 << 23), max_size=20),
)
def test_answers_come_whole_and_in_order_however_the_stream_is_cut(
    sizes: list[tuple[int, bool]], cuts: list[int]
) -> None:
    connection = opened()
    stream = b""
    for number, (size, keeps) in enumerate(sizes):
        (header,) = asked(connection.request(FetchRequest(), 11, 1.0, 30, number, keeps=keeps))
        stream += reply(header, fetched(number, size))
    answers = [event for event in feed(connection, stream, cuts) if isinstance(event, InFlightRequest)]
    parts = [answer.response.responses[0].partitions[0] for answer in answers]
    assert [answer.tag for answer in answers] == list(range(len(sizes)))
    assert [bytes(part.records or b"") for part in parts] == [
        bytes([number]) * size for number, (size, _) in enumerate(sizes)
    ], "those that are kept outlive all reads behind them"


def test_single_bytes_suffice() -> None:
    connection = opened()
    stream = b"".join(
        reply(asked(connection.request(MetadataRequest(), 9, 1.0, 30, n, keeps=True))[0], metadata(n))
        for n in range(3)
    )
    events = feed(connection, stream, range(len(stream)))
    assert [(e.tag, e.response.controller_id) for e in events if isinstance(e, InFlightRequest)] == [
        (n, n) for n in range(3)
    ]


def test_a_response_out_of_order_closes_the_connection() -> None:
    connection = opened()
    first, second = (
        asked(connection.request(MetadataRequest(), 9, 1.0, 30, tag, keeps=True))[0] for tag in "ab"
    )
    (lost,) = feed(connection, reply(second, metadata(2)) + reply(first, metadata(1)))
    assert isinstance(lost, Lost)
    assert str(lost.problem) == "broker:9092 answered request 2, where request 1 was next"
    answers = connection.ended(None)
    assert [(e.tag, type(e.response)) for e in answers if isinstance(e, InFlightRequest)] == [
        ("a", ConnectionLost),
        ("b", ConnectionLost),
    ]
    with pytest.raises(ConnectionLost, match="answered request 2"):
        connection.request(MetadataRequest(), 9, 1.0, 30, "c", keeps=True)


@pytest.mark.parametrize("data", [struct.pack(">ii", 4, 7), b"\xff\xff\xff\xff", struct.pack(">i", 3)])
def test_an_unrequested_response_closes_the_connection(data: bytes) -> None:
    connection = opened()
    (lost,) = feed(connection, data)
    assert isinstance(lost, Lost)
    assert connection.phase is Phase.LOST
    assert connection.ended(None) == []


def test_an_undecodable_response_fails_only_its_request() -> None:
    connection = opened()
    headers = [asked(connection.request(MetadataRequest(), 9, 1.0, 30, n, keeps=True))[0] for n in range(2)]
    nonsense = struct.pack(">iib", 5, headers[0].correlation_id, 0)
    first, second = feed(connection, nonsense + reply(headers[1], metadata(1)))
    assert isinstance(first, InFlightRequest)
    assert isinstance(first.response, MalformedMessage)
    assert isinstance(second, InFlightRequest)
    assert second.response.controller_id == 1


def test_a_late_response_is_dropped_and_the_next_one_reaches_its_request() -> None:
    connection = opened()
    early, late = (
        asked(connection.request(MetadataRequest(), 9, 1.0, time, tag, keeps=True))[0]
        for time, tag in ((1, "short"), (9, "long"))
    )
    assert connection.next_time == 2.0
    (expired,) = connection.expire(2.0)
    assert isinstance(expired, InFlightRequest)
    assert (expired.tag, type(expired.response)) == ("short", TimeoutError)
    assert connection.next_time == 10.0
    (answer,) = feed(connection, reply(early, metadata(1)) + reply(late, metadata(2)))
    assert isinstance(answer, InFlightRequest)
    assert (answer.tag, answer.response.controller_id) == ("long", 2)
    assert connection.expire(10.0) == []


@given(st.data())
def test_every_request_gets_exactly_one_result(data: st.DataObject) -> None:
    connection = opened()
    stream, sent, answers, now = b"", 0, Counter[int](), 1.0

    def count(events: Sequence[Event]) -> None:
        answers.update(event.tag for event in events if isinstance(event, InFlightRequest))

    for step in data.draw(st.lists(st.sampled_from("rrrffft"), max_size=30)):
        if step == "r":
            timeout_s = data.draw(st.integers(1, 5))
            (header,) = asked(connection.request(MetadataRequest(), 9, now, timeout_s, sent, keeps=True))
            stream += reply(header, metadata(sent))
            sent += 1
        elif step == "f":
            size = data.draw(st.integers(0, len(stream)))
            count(feed(connection, stream[:size]))
            stream = stream[size:]
        elif step == "t":
            now += data.draw(st.integers(0, 3))
            if now >= connection.next_time:
                count(connection.expire(now))
    count(connection.ended(None))
    assert answers == Counter(range(sent))
    assert connection.ended(None) == []


# --- versions ---


def test_the_highest_common_allowed_version_is_chosen() -> None:
    connection = opened(limits={MetadataRequest.api_key: 4, FetchRequest.api_key: 17})
    assert connection.version_of(FetchRequest.api_key) == 11
    assert connection.version_of(MetadataRequest.api_key) == 4
    with pytest.raises(UnsupportedApi, match=r"broker:9092 serves ProduceRequest in versions None"):
        connection.version_of(0)


def test_a_broker_with_older_api_versions_is_asked_again() -> None:
    connection = ConnectionState("broker:9092", "tests")
    first = send_of(connection.begin(0.0, 10))
    assert first.api_version == 3
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    second = send_of(feed(connection, reply(first, refusal, version=0)))
    assert second.api_version == 0
    assert feed(connection, reply(second, VERSIONS)) == [Ready()]


def test_requests_before_the_connection_is_open_are_sent_afterwards() -> None:
    connection = ConnectionState("broker:9092", "tests")
    first = send_of(connection.begin(0.0, 10))
    assert connection.request(MetadataRequest(), 9, 0.0, 30, "early", keeps=True) == b""
    ready, send = feed(connection, reply(first, VERSIONS))
    assert ready == Ready()
    (answer,) = feed(connection, reply(send_of([send]), metadata(1)))
    assert isinstance(answer, InFlightRequest)
    assert answer.tag == "early"


def test_a_silent_broker_fails_the_login() -> None:
    connection = ConnectionState("broker:9092", "tests")
    connection.begin(0.0, 10)
    assert connection.next_time == 10
    (lost,) = connection.expire(10)
    assert isinstance(lost, Lost)
    assert isinstance(lost.problem, TimeoutError)


# --- logins ---


def exchange() -> Generator[bytes, bytes, None]:
    challenge = yield b"hello"
    if challenge != b"prove it":
        raise SaslFailed("that is no challenge")
    yield b"proof"


LOGIN = Login("PLAIN", exchange)


def proved(events: Sequence[Event]) -> bytes | Exception | None:
    (event,) = events
    assert isinstance(event, SaslStep)
    try:
        return event.work()
    except Exception as problem:
        return problem


def token(challenge: bytes, lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=challenge, session_lifetime_ms=lifetime_ms)


def log_in(connection: ConnectionState, shake: frames.RequestHeader, lifetime_ms: int) -> list[Event]:
    """The broker's side of a whole login."""
    assert shake.api_key == 17
    first = send_of(feed(connection, reply(shake, SaslHandshakeResponse(mechanisms=["PLAIN"]))))
    second = send_of(connection.sasl_step_done(proved(feed(connection, reply(first, token(b"prove it"))))))
    return connection.sasl_step_done(proved(feed(connection, reply(second, token(b"", lifetime_ms)))))


def begun() -> tuple[ConnectionState, frames.RequestHeader]:
    connection = ConnectionState("broker:9092", "tests", login=LOGIN)
    return connection, send_of(feed(connection, reply(send_of(connection.begin(0.0, 10)), VERSIONS)))


def test_a_login_is_a_handshake_and_tokens() -> None:
    connection, shake = begun()
    assert log_in(connection, shake, 0) == [Ready()]
    assert connection.request(MetadataRequest(), 9, 1e9, 30, "never again", keeps=True)


def test_a_login_prepares_its_token_before_each_exchange() -> None:
    def refusing() -> Generator[bytes, bytes, None]:
        raise SaslFailed("that is no token")
        yield b""

    async def prepare() -> None: ...

    for begin, refused in ((exchange, False), (refusing, True)):
        connection = ConnectionState("broker:9092", "tests", login=Login("OAUTHBEARER", begin, prepare))
        shake = send_of(feed(connection, reply(send_of(connection.begin(0.0, 10)), VERSIONS)))
        assert feed(connection, reply(shake, SaslHandshakeResponse())) == [Prepare(prepare)]
        events = connection.sasl_step_done(None)
        if refused:
            assert "that is no token" in str(problem_of(events))
        else:
            assert send_of(events).api_key == 36

    connection = ConnectionState("broker:9092", "tests", login=Login("OAUTHBEARER", exchange, prepare))
    shake = send_of(feed(connection, reply(send_of(connection.begin(0.0, 10)), VERSIONS)))
    feed(connection, reply(shake, SaslHandshakeResponse()))
    assert str(problem_of(connection.sasl_step_done(OSError("no token")))) == "no token"


def problem_of(events: Sequence[Event]) -> Exception:
    (event,) = events
    assert isinstance(event, Lost)
    return event.problem


def test_a_login_fails_by_the_brokers_error_or_an_invalid_proof() -> None:
    connection, shake = begun()
    refusal = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["GSSAPI"])
    problem: Any = problem_of(feed(connection, reply(shake, refusal)))
    assert isinstance(problem, KafkaError)
    assert "sasl.mechanism=PLAIN; the broker has enabled: GSSAPI" in str(problem)

    connection, shake = begun()
    first = send_of(feed(connection, reply(shake, SaslHandshakeResponse())))
    wrong = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="who are you?"
    )
    problem = problem_of(feed(connection, reply(first, wrong)))
    assert "who are you?" in str(problem)

    connection, shake = begun()
    first = send_of(feed(connection, reply(shake, SaslHandshakeResponse())))
    problem = problem_of(
        connection.sasl_step_done(proved(feed(connection, reply(first, token(b"nonsense")))))
    )
    assert problem.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "that is no challenge" in str(problem)


def ready_until(lifetime_ms: int) -> tuple[ConnectionState, float]:
    connection, shake = begun()
    assert log_in(connection, shake, lifetime_ms) == [Ready()]
    return connection, RENEW_AFTER * lifetime_ms / 1000


def test_a_session_is_reauthenticated_before_it_expires_and_requests_wait_in_order() -> None:
    connection, until = ready_until(10_000)
    before = asked(connection.request(MetadataRequest(), 9, until - 0.1, 30, "before", keeps=True))
    (shake,) = asked(connection.request(MetadataRequest(), 9, until, 30, "a", keeps=True))
    assert connection.phase is Phase.RENEWING
    assert connection.request(MetadataRequest(), 9, until, 0.5, "impatient", keeps=True) == b""
    assert connection.request(MetadataRequest(), 9, until, 30, "b", keeps=True) == b""
    (answer,) = feed(connection, reply(before[0], metadata(0)))
    assert isinstance(answer, InFlightRequest)
    assert answer.tag == "before"
    (late,) = connection.expire(until + 0.5)
    assert isinstance(late, InFlightRequest)
    assert (late.tag, type(late.response)) == ("impatient", TimeoutError)
    sends = log_in(connection, shake, 10_000)
    headers = [send_of([send]) for send in sends]
    answers = feed(connection, b"".join(reply(header, metadata(1)) for header in headers))
    assert [event.tag for event in answers if isinstance(event, InFlightRequest)] == ["a", "b"]
    again = until + RENEW_AFTER * 10
    assert asked(connection.request(MetadataRequest(), 9, again - 0.1, 30, "c", keeps=True))[0].api_key == 3
    assert asked(connection.request(MetadataRequest(), 9, again, 30, "d", keeps=True))[0].api_key == 17


def test_a_failed_reauthentication_closes_the_connection_and_fails_waiting_requests() -> None:
    connection, until = ready_until(10_000)
    (shake,) = asked(connection.request(MetadataRequest(), 9, until, 30, "held", keeps=True))
    refusal = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    problem_of(feed(connection, reply(shake, refusal)))
    (answer,) = connection.ended(None)
    assert isinstance(answer, InFlightRequest)
    assert (answer.tag, type(answer.response)) == ("held", ConnectionLost)
    assert connection.sasl_step_done(b"too late") == []
