"""APIs of a whole broker: the advertised versions, and an error response for every API in every version."""

from __future__ import annotations

import asyncio

import pytest

from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.protocol import codec
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Field, FieldType, Message, Struct, fields_of
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.server.dispatch.dispatcher import Route


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[Route]:
    directory = tmp_path_factory.mktemp("broker")

    async def scenario() -> list[Route]:
        config = {"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
        broker = Broker(BrokerConfig.from_properties(config), store=MemoryStore())
        await broker.start()
        await broker.stop()
        return broker.requests.dispatcher.routes()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(scenario())


def test_the_advertised_versions_are_kafkas(routes: list[Route]) -> None:
    served = {route.api_key: (route.min_version, route.max_version) for route in routes}
    assert served[ApiKey.PRODUCE] == (0, 11), "from 0: old librdkafka stops compressing otherwise"
    assert served[ApiKey.FETCH] == (0, 17)
    assert served[ApiKey.METADATA] == (0, 12)
    assert served[ApiKey.API_VERSIONS] == (0, 4)
    for key in (
        *(ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.LIST_GROUPS, ApiKey.INIT_PRODUCER_ID),
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT),
    ):
        assert served[key][0] == 0, f"{key.name}: clients pin it low"


def sample(cls: type[Struct], version: int) -> Struct:
    """A value with one element in every list, so that error responses have content."""
    filled = {}
    for item in fields_of(cls):
        if version in item.versions:
            filled[item.name] = _sample_value(item.type, item, version)
    return cls(**filled)


def _sample_value(kind: FieldType, item: Field | None, version: int) -> object:
    if kind.wire == "array":
        assert kind.element is not None
        return [_sample_value(kind.element, None, version)]
    if kind.wire == "struct":
        assert kind.struct is not None
        return sample(kind.struct, version)
    if kind.wire in ("string", "bytes", "records"):
        return {"string": "name", "bytes": b"bytes", "records": b""}[kind.wire]
    return item.default if item is not None else {"uuid": None, "bool": False}.get(kind.wire, 0)


def test_every_api_has_an_error_response_in_every_version(routes: list[Route]) -> None:
    for route in routes:
        for version in range(route.min_version, route.max_version + 1):
            request = sample(route.request_class, version)
            assert isinstance(request, Message)
            decoded = codec.decode(route.request_class, version, codec.encode(request, version))
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            response = route.on_error(decoded, version, code, "what went wrong")
            body = codec.encode(response, version)
            again = codec.decode(type(response), version, body)
            assert "error_code=-1" in repr(again).replace("<ErrorCode.UNKNOWN_SERVER_ERROR: -1>", "-1"), (
                f"{route.api_key.name} v{version} hides the error: {again}"
            )
