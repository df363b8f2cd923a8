"""ControlledShutdown 0-3, AllocateProducerIds 0 (KIP-730) and UpdateFeatures 0-1 (KIP-584) in the controller.

Called through `Controller`.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.controller import broker_changes
from ottla.controller.active_controller import (
    NOT_CONTROLLER_MESSAGE,
    ActiveController,
    ControllerInterface,
    NotController,
    run_or_error,
)
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.producer_ids import ProducerIdsExhausted, allocate_block
from ottla.metadata.store import SetData
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_SUCCESS: Final = "NONE"
"""Kafka's error message of a successful update."""

Update = m.UpdateFeaturesRequest.FeatureUpdateKey


# ControlledShutdown


async def controlled_shutdown(
    controller: ControllerInterface, request: m.ControlledShutdownRequest
) -> m.ControlledShutdownResponse:
    async def work(active: ActiveController) -> m.ControlledShutdownResponse:
        context, effects = active.context, Effects()
        broker = context.brokers.get(request.broker_id)
        if broker is None:
            return m.ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        if request.broker_epoch >= 0 and request.broker_epoch != broker.epoch:
            return m.ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        remaining = broker_changes.controlled_shutdown(context, effects, request.broker_id)
        await active.apply(effects)
        log.info(
            "Controlled shutdown of broker %d: it still leads %d partitions",
            request.broker_id,
            len(remaining),
        )
        return m.ControlledShutdownResponse(
            remaining_partitions=[
                m.ControlledShutdownResponse.RemainingPartition(
                    topic_name=tp.topic, partition_index=tp.partition
                )
                for tp in remaining
            ]
        )

    return await run_or_error(controller, work, lambda error: m.ControlledShutdownResponse(error_code=error))


# AllocateProducerIds


async def allocate_producer_ids(
    controller: ControllerInterface, request: m.AllocateProducerIdsRequest
) -> m.AllocateProducerIdsResponse:
    """A block of producer ids for a broker registered with the request's broker epoch.

    The block is written with the controller epoch's check before the response, so none is allocated twice.
    """

    async def work(active: ActiveController) -> m.AllocateProducerIdsResponse:
        broker = active.context.brokers.get(request.broker_id)
        if broker is None:
            return m.AllocateProducerIdsResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.epoch != request.broker_epoch:
            log.warning("Broker %d requested producer ids with a stale broker epoch", request.broker_id)
            return m.AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        try:
            block = await allocate_block(active.store, request.broker_id, checks=[active.epoch_check])
        except ProducerIdsExhausted:
            log.error("Exhausted all producer ids")
            return m.AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return m.AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)

    return await run_or_error(controller, work, lambda error: m.AllocateProducerIdsResponse(error_code=error))


# UpdateFeatures


async def update_features(
    controller: ControllerInterface, request: m.UpdateFeaturesRequest, version: int
) -> m.UpdateFeaturesResponse:
    """UpdateFeatures as in Kafka's ZooKeeper mode.

    All features of Kafka 3.9 (metadata.version among them) belong to KRaft, and brokers in ZooKeeper mode
    support none: every upgrade fails with Kafka's message. Only features that are already in /feature can be
    deleted. As in Kafka, ValidateOnly has no effect.
    """

    async def work(active: ActiveController) -> m.UpdateFeaturesResponse:
        found = await active.store.get(znodes.FEATURE)
        levels = {} if found is None else znodes.decode_features(found[0])
        # A request has a feature once; of two updates the first one counts.
        updates = {update.feature: update for update in reversed(request.feature_updates)}
        problems = {
            name: _rejection(updates[name], levels.get(name), version)
            for name in dict.fromkeys(update.feature for update in request.feature_updates)
        }
        left = {name: level for name, level in levels.items() if problems.get(name, "kept") is not None}
        if left != levels:
            await active.fenced_multi([SetData(znodes.FEATURE, znodes.encode_feature(features=left))])
        return m.UpdateFeaturesResponse(
            error_message=None,
            results=[
                m.UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=name,
                    error_code=ErrorCode.NONE if problem is None else ErrorCode.INVALID_REQUEST,
                    error_message=problem or _SUCCESS,
                )
                for name, problem in problems.items()
            ],
        )

    try:
        return await controller.run_as_controller(work)
    except NotController:
        return m.UpdateFeaturesResponse(
            error_code=ErrorCode.NOT_CONTROLLER, error_message=NOT_CONTROLLER_MESSAGE
        )


def _rejection(update: Update, level: int | None, version: int) -> str | None:
    """The error message of a rejected update; None for an update that deletes a feature. `level` is the
    feature's finalized level."""
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
