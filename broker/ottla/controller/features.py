"""UpdateFeatures 0 and 1, as Kafka 3.9 answers in ZooKeeper mode (KIP-584).

Called through `Controller`. Every feature of 3.9 (metadata.version among them) is KRaft's, and brokers of
ZooKeeper mode support none: whatever is to be raised is refused, update by update, with Kafka's reason. Only
what somebody else left in /feature can be taken away. As there, ValidateOnly is not looked at.
"""

from __future__ import annotations

from typing import Final

from ottla.controller.office import NotController, Office
from ottla.controller.term import Term
from ottla.metadata import znodes
from ottla.metadata.store import SetData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_NOT_CONTROLLER: Final = "This is not the correct controller for this cluster."
_SUCCESS: Final = "NONE"
"""What Kafka has for a message where all went well."""

Update = UpdateFeaturesRequest.FeatureUpdateKey


async def update_features(
    office: Office, request: UpdateFeaturesRequest, version: int
) -> UpdateFeaturesResponse:
    async def work(term: Term) -> UpdateFeaturesResponse:
        found = await term.store.get(znodes.FEATURE)
        levels = {} if found is None else znodes.decode_features(found[0])
        # A feature is in a request once: of two updates the first counts.
        updates = {update.feature: update for update in reversed(request.feature_updates)}
        problems = {
            name: _problem(updates[name], levels.get(name), version)
            for name in dict.fromkeys(update.feature for update in request.feature_updates)
        }
        left = {name: level for name, level in levels.items() if problems.get(name, "kept") is not None}
        if left != levels:
            await term.fenced([SetData(znodes.FEATURE, znodes.encode_feature(features=left))])
        return UpdateFeaturesResponse(
            error_message=None,
            results=[
                UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=name,
                    error_code=ErrorCode.NONE if problem is None else ErrorCode.INVALID_REQUEST,
                    error_message=problem or _SUCCESS,
                )
                for name, problem in problems.items()
            ],
        )

    try:
        return await office.in_office(work)
    except NotController:
        return UpdateFeaturesResponse(error_code=ErrorCode.NOT_CONTROLLER, error_message=_NOT_CONTROLLER)


def _problem(update: Update, level: int | None, version: int) -> str | None:
    """Why the update is refused; None for one that takes a feature away, which has that level now."""
    kind = update.upgrade_type if version >= 1 else SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    wanted = update.max_version_level
    if not update.feature:
        return "Feature name can not be empty."
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "Received unknown upgrade type."
    if wanted < 1:
        if kind == UPGRADE:
            return (
                f"Can not provide versionLevel: {wanted} less than 1 without setting the SAFE downgradeType "
                "in the request."
            )
        return "Can not delete non-existing finalized feature." if level is None else None
    if level is not None:
        if wanted == level:
            verb = "downgrade" if kind == SAFE_DOWNGRADE else "upgrade"
            return f"Can not {verb} a finalized feature from existing versionLevel:{level} to the same value."
        if wanted < level and kind != SAFE_DOWNGRADE:
            return (
                f"Can not downgrade finalized feature from existing versionLevel:{level} to provided "
                f"versionLevel:{wanted} without setting the downgradeType to SAFE in the request."
            )
        if wanted > level and kind != UPGRADE:
            return (
                f"When the downgradeType is set to SAFE in the request, the provided versionLevel:{wanted} "
                f"can not be greater than existing versionLevel:{level}."
            )
    return "Could not apply finalized feature update because the provided feature is not supported."
