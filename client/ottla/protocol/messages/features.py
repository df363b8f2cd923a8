"""Levels of cluster-wide features (KIP-584)."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int8, Int16, Int32, Message, String, Struct, field


class UpdateFeaturesRequest(Message, api_key=57, versions="0-1", flexible="0+"):
    """Raise or lower feature levels; level 0 removes a feature."""

    class FeatureUpdateKey(Struct):
        feature: String = field("0+")
        max_version_level: Int16 = field("0+")
        allow_downgrade: Bool = field("0")
        upgrade_type: Int8 = field("1+", default=1)

    timeout_ms: Int32 = field("0+", default=60000)
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = field("0+")
    validate_only: Bool = field("1+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-1", flexible="0+"):
    """The outcome per feature."""

    class UpdatableFeatureResult(Struct):
        feature: String = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = field("0+")
