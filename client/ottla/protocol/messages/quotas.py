"""Client quotas by user, client id and address (KIP-546)."""

from __future__ import annotations

from ottla.protocol.types import Bool, Float64, Int8, Int16, Int32, Message, String, Struct, field


class DescribeClientQuotasRequest(Message, api_key=48, versions="0-1", flexible="1+"):
    """Describes the quotas of matching entities (0 exact, 1 default, 2 any); strict: without other
    components."""

    class ComponentData(Struct):
        entity_type: String = field("0+")
        match_type: Int8 = field("0+")
        match: String | None = field("0+", nullable="0+")

    components: list[DescribeClientQuotasRequest.ComponentData] = field("0+")
    strict: Bool = field("0+")


class DescribeClientQuotasResponse(Message, api_key=48, versions="0-1", flexible="1+"):
    """The quotas of each entity; a null name is the default entity of its type."""

    class EntityData(Struct):
        entity_type: String = field("0+")
        entity_name: String | None = field("0+", nullable="0+")

    class ValueData(Struct):
        key: String = field("0+")
        value: Float64 = field("0+")

    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = field("0+")
        values: list[DescribeClientQuotasResponse.ValueData] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    entries: list[DescribeClientQuotasResponse.EntryData] | None = field("0+", nullable="0+")


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible="1+"):
    """Sets or removes quotas of entities."""

    class EntityData(Struct):
        entity_type: String = field("0+")
        entity_name: String | None = field("0+", nullable="0+")

    class OpData(Struct):
        key: String = field("0+")
        value: Float64 = field("0+")
        remove: Bool = field("0+")

    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = field("0+")
        ops: list[AlterClientQuotasRequest.OpData] = field("0+")

    entries: list[AlterClientQuotasRequest.EntryData] = field("0+")
    validate_only: Bool = field("0+")


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    """The result of each entity."""

    class EntityData(Struct):
        entity_type: String = field("0+")
        entity_name: String | None = field("0+", nullable="0+")

    class EntryData(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        entity: list[AlterClientQuotasResponse.EntityData] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    entries: list[AlterClientQuotasResponse.EntryData] = field("0+")
