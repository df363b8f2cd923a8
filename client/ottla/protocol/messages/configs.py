"""Settings of topics and brokers, and client quotas by user, client id and address (KIP-546)."""

from __future__ import annotations

from ottla.protocol.types import Bool, Float64, Int8, Int16, Int32, Message, String, Struct, field


class DescribeConfigsRequest(Message, api_key=32, versions="0-4", flexible="4+"):
    """Describes settings of resources (null: all), optionally with synonyms and documentation."""

    class DescribeConfigsResource(Struct):
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        configuration_keys: list[String] | None = field("0+", nullable="0+")

    resources: list[DescribeConfigsRequest.DescribeConfigsResource] = field("0+")
    include_synonyms: Bool = field("1+")
    include_documentation: Bool = field("3+")


class DescribeConfigsResponse(Message, api_key=32, versions="0-4", flexible="4+"):
    """The settings of each resource with their sources."""

    class DescribeConfigsSynonym(Struct):
        name: String = field("1+")
        value: String | None = field("1+", nullable="1+")
        source: Int8 = field("1+")

    class DescribeConfigsResourceResult(Struct):
        name: String = field("0+")
        value: String | None = field("0+", nullable="0+")
        read_only: Bool = field("0+")
        is_default: Bool = field("0")
        config_source: Int8 = field("1+", default=-1, ignorable=True)
        is_sensitive: Bool = field("0+")
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = field("1+", ignorable=True)
        config_type: Int8 = field("3+", ignorable=True)
        documentation: String | None = field("3+", nullable="3+", ignorable=True)

    class DescribeConfigsResult(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[DescribeConfigsResponse.DescribeConfigsResult] = field("0+")


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    """Replaces all settings of resources: settings that are not in the request go back to their defaults."""

    class AlterableConfig(Struct):
        name: String = field("0+")
        value: String | None = field("0+", nullable="0+")

    class AlterConfigsResource(Struct):
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        configs: list[AlterConfigsRequest.AlterableConfig] = field("0+")

    resources: list[AlterConfigsRequest.AlterConfigsResource] = field("0+")
    validate_only: Bool = field("0+")


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    """The result of each resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")

    throttle_time_ms: Int32 = field("0+")
    responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = field("0+")


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    """Sets, deletes, appends to or subtracts from single settings (KIP-339)."""

    class AlterableConfig(Struct):
        name: String = field("0+")
        config_operation: Int8 = field("0+")
        value: String | None = field("0+", nullable="0+")

    class AlterConfigsResource(Struct):
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = field("0+")

    resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = field("0+")
    validate_only: Bool = field("0+")


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    """The result of each resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")

    throttle_time_ms: Int32 = field("0+")
    responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = field("0+")


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
