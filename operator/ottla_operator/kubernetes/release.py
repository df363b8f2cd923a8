"""Leaves resources: no finalizer waits for an operator that is gone, and no status claims that all is well.

Called by the controller at its start, for namespaces that it no longer watches, and by `ottla operator
--release`, the last step of an uninstallation. `status.operator` says whose resource it is: an operator never
releases what another one reconciles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ottla_operator.kubernetes.api import Api, Conflict, NotFound, Object
from ottla_operator.kubernetes.naming import FINALIZER
from ottla_operator.resources import KINDS
from ottla_operator.resources.loading import status_unknown

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_REASON: Final = "NotWatched"


async def release_unwatched(
    api: Api, operator: str, namespaces: Sequence[str], clock_ms: Callable[[], int]
) -> int:
    """Release the operator's resources outside of these namespaces. Returns their number. Raises ApiError."""
    message = f"the operator {operator} no longer watches this namespace"
    return await _release(
        api,
        lambda item: _operator_of(item) == operator and _namespace(item) not in namespaces,
        message,
        clock_ms,
    )


async def release_all(api: Api, operator: str, namespaces: Sequence[str], clock_ms: Callable[[], int]) -> int:
    """Release all resources in these namespaces (none: in all), but those of other operators. Returns their
    number. Raises ApiError."""
    message = f"the operator {operator} was uninstalled; brokers and pipelines run on without one"
    return await _release(
        api,
        lambda item: (
            _operator_of(item) in ("", operator) and (not namespaces or _namespace(item) in namespaces)
        ),
        message,
        clock_ms,
    )


async def _release(
    api: Api, leaves: Callable[[Object], bool], message: str, clock_ms: Callable[[], int]
) -> int:
    count = 0
    for kind in KINDS:
        try:
            found = await api.list(kind, None)
        except NotFound:
            # The CustomResourceDefinition is deleted, or older than the kind.
            continue
        for item in filter(leaves, found):
            await _release_one(api, kind, item, message, clock_ms)
            count += 1
    return count


async def _release_one(api: Api, kind: str, item: Object, message: str, clock_ms: Callable[[], int]) -> None:
    namespace, name = _namespace(item), str(item["metadata"]["name"])
    for _ in range(_ATTEMPTS):
        try:
            metadata = item["metadata"]
            left = [each for each in metadata.get("finalizers") or () if each != FINALIZER]
            if left != list(metadata.get("finalizers") or ()):
                patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": left}}
                item = await api.merge(kind, namespace, name, patch)
            status = item.get("status")
            if status:
                version = item["metadata"]["resourceVersion"]
                wanted = status_unknown(kind, status, _REASON, message, clock_ms())
                await api.replace_status(kind, namespace, name, version, wanted)
            log.info("%s/%s/%s is released: %s", namespace, kind, name, message)
            return
        except NotFound:
            # It was waiting for its finalizer.
            return
        except Conflict:
            try:
                item = await api.get(kind, namespace, name)
            except NotFound:
                return
    log.warning("%s/%s/%s is not released: it is changed again and again", namespace, kind, name)


def _operator_of(item: Object) -> str:
    return str((item.get("status") or {}).get("operator") or "")


def _namespace(item: Object) -> str:
    return str(item["metadata"]["namespace"])
