"""Whether a JSON Schema accepts all that another one accepts. Called by `json_schema`.

Only schemas that say the same are taken to.
"""

from __future__ import annotations

from typing import Any

from ottla_pipeline.registry.formats.parsed import Incompatibility


def differences(reader: Any, writer: Any) -> list[Incompatibility]:
    if reader == writer:
        return []
    return [Incompatibility("SCHEMA_CHANGED", "/", "it differs, and differences are not weighed yet")]
