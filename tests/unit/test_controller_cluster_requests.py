"""UpdateFeatures: finalized levels are set, deleted or refused as by Kafka's controller."""

from __future__ import annotations

from ottla.controller.cluster_requests import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE
from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import UpdateFeaturesRequest
from tests.worlds.controller_harness import Cluster, run

Update = UpdateFeaturesRequest.FeatureUpdateKey


async def finalize(cluster: Cluster, **levels: int) -> None:
    tool = MemoryStore(cluster.tree)
    await tool.connect()
    await tool.set(znodes.FEATURE, znodes.encode_feature(features=levels))


async def update(cluster: Cluster, *updates: Update) -> dict[str, str | None]:
    answer = await cluster.controller.update_features(UpdateFeaturesRequest(feature_updates=list(updates)))
    assert answer.error_code == ErrorCode.NONE
    return {row.feature: row.error_message if row.error_code else None for row in answer.results}


def levels(cluster: Cluster) -> dict[str, int]:
    data = cluster.data(znodes.FEATURE)
    assert data is not None
    return znodes.decode_features(data)


def test_only_finalized_features_can_be_deleted() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            await finalize(cluster, old=3, kept=1)
            reported = await update(
                cluster,
                Update(feature="old", max_version_level=0, upgrade_type=SAFE_DOWNGRADE),
                Update(feature="kept", max_version_level=2),
                Update(feature="new", max_version_level=1),
            )
            assert reported["old"] is None
            assert all("not supported" in (reported[name] or "") for name in ("kept", "new"))
            assert levels(cluster) == {"kept": 1}

    run(scenario)


def test_every_refusal_has_a_reason_and_changes_nothing() -> None:
    cases = [
        (
            Update(feature="f", max_version_level=3),
            "upgrade a finalized feature from existing versionLevel:3",
        ),
        (Update(feature="f", max_version_level=3, upgrade_type=SAFE_DOWNGRADE), "Can not downgrade"),
        (Update(feature="f", max_version_level=2, upgrade_type=UPGRADE), "without setting the downgradeType"),
        (Update(feature="f", max_version_level=2, upgrade_type=UNSAFE_DOWNGRADE), "without setting the"),
        (Update(feature="f", max_version_level=2, upgrade_type=SAFE_DOWNGRADE), "is not supported"),
        (Update(feature="f", max_version_level=4, upgrade_type=SAFE_DOWNGRADE), "can not be greater than"),
        (Update(feature="f", max_version_level=0, upgrade_type=UPGRADE), "less than 1"),
    ]

    async def scenario() -> None:
        async with Cluster(1) as cluster:
            await finalize(cluster, f=3)
            for asked, reason in cases:
                reported = await update(cluster, asked)
                assert reason in (reported["f"] or ""), asked
            assert levels(cluster) == {"f": 3}

    run(scenario)


def test_only_the_controller_decides() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            (other,) = [node for node in cluster.nodes.values() if not node.controller.is_active]
            answer = await other.controller.update_features(UpdateFeaturesRequest())
            assert answer.error_code == ErrorCode.NOT_CONTROLLER

    run(scenario)
