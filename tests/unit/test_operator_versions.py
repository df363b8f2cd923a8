"""`spec.version`: upgrades roll the binaries first, then the protocol version, which is never lowered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_operator.planning.observed import BrokerInstance, KafkaState, Observed, ZooKeeperState
from ottla_operator.planning.revision import plan_upgrade
from ottla_operator.platform.interfaces import BrokerLaunch
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus
from ottla_operator.resources.cluster import BrokerClusterSpec
from ottla_operator.resources.cluster_status import UpgradeStatus
from ottla_operator.resources.loading import parse_resource
from ottla_operator.resources.settings import (
    DEFAULT_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    broker_settings_problems,
    release_of,
    version_problem,
)
from tests.worlds.operator_simulation import OperatorSimulation, SimulatedCluster

OLD, NEW = "ottla:1", "ottla:2"
BROKERS = range(3)


def broker(number: int, version: str | None, image: str = OLD, *, ready: bool = True) -> BrokerInstance:
    settings = {"image": image, **({PROTOCOL_VERSION: version} if version else {})}
    return BrokerInstance(number, "Running", ready=ready, config_hash="h", settings=settings)


def observe(*brokers: BrokerInstance) -> Observed:
    live = frozenset(b.id for b in brokers if b.ready)
    return Observed(ZooKeeperState(True), {b.id: b for b in brokers}, KafkaState(True, "c", 0, live), 0)


def spec(version: str | None, replicas: int = 3) -> BrokerClusterSpec:
    return BrokerClusterSpec.model_construct(version=version, replicas=replicas, config={})


@pytest.mark.parametrize(
    ("brokers", "wanted", "version", "phase", "running"),
    [
        pytest.param([], "3.9", "3.9", None, "", id="a new cluster speaks it at once"),
        pytest.param([broker(b, "3.8", NEW) for b in range(3)], "3.8", "3.8", None, "3.8", id="no change"),
        pytest.param(
            [broker(b, "3.8") for b in range(3)], "3.9", "3.8", "Binaries", "3.8", id="the image is old"
        ),
        pytest.param(
            [broker(0, "3.8", NEW), broker(1, "3.8", NEW), broker(2, "3.8")],
            "3.9",
            "3.8",
            "Binaries",
            "3.8",
            id="the last one's image is old",
        ),
        pytest.param(
            [broker(0, "3.8", NEW), broker(1, "3.8", NEW), broker(2, "3.8", NEW, ready=False)],
            "3.9",
            "3.8",
            "Binaries",
            "3.8",
            id="the last one does not come up on it",
        ),
        pytest.param(
            [broker(b, "3.8", NEW) for b in range(3)], "3.9", "3.9", "Protocol", "3.8", id="all run the image"
        ),
        pytest.param(
            [broker(0, "3.9", NEW), broker(1, "3.8", NEW), broker(2, "3.8", NEW, ready=False)],
            "3.9",
            "3.9",
            "Protocol",
            "3.8",
            id="raised somewhere: it goes on, whoever is down",
        ),
        pytest.param(
            [broker(b, "3.8", NEW) for b in range(2)], "3.9", "3.8", "Binaries", "3.8", id="one is missing"
        ),
        pytest.param(
            [broker(b, None) for b in range(3)], "3.9", None, "Binaries", "3.7", id="without the setting"
        ),
    ],
)
def test_the_protocol_version_follows_these_rules(
    brokers: list[BrokerInstance], wanted: str, version: str | None, phase: str | None, running: str
) -> None:
    upgrade = plan_upgrade(spec(wanted), BROKERS, observe(*brokers), {"image": NEW}, default="3.7")
    assert upgrade.version == version
    assert (upgrade.status.phase if upgrade.status else None) == phase
    assert upgrade.running == running
    assert not upgrade.refused


@pytest.mark.parametrize(("image", "phase"), [(NEW, "Protocol"), (OLD, "Binaries")])
def test_the_second_roll_continues_while_a_broker_is_restarted_for_it(image: str, phase: str) -> None:
    brokers = [broker(0, "3.8", NEW), broker(1, "3.8", NEW), broker(2, "3.8", image, ready=False)]
    before = UpgradeStatus(from_version="3.8", to_version="3.9", phase="Protocol")
    upgrade = plan_upgrade(spec("3.9"), BROKERS, observe(*brokers), {"image": NEW}, before, "3.7")
    assert upgrade.status is not None
    assert upgrade.status.phase == phase


def test_a_raised_version_is_not_lowered() -> None:
    brokers = [broker(0, "3.9", NEW), broker(1, "3.8", NEW)]
    upgrade = plan_upgrade(spec("3.8", 2), range(2), observe(*brokers), {"image": NEW}, default="3.0")
    assert upgrade.version == "3.9"
    assert upgrade.refused == "brokers use inter.broker.protocol.version 3.9, which cannot be lowered to 3.8"


def test_an_old_image_can_be_restored_until_the_version_is_raised() -> None:
    brokers = [broker(0, "3.8", NEW), broker(1, "3.8", OLD)]
    upgrade = plan_upgrade(spec("3.8", 2), range(2), observe(*brokers), {"image": OLD}, default="3.0")
    assert (upgrade.version, upgrade.refused, upgrade.status) == ("3.8", "", None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["3.7", "3.8", "3.9"]), st.sampled_from([OLD, NEW]), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["3.7", "3.8", "3.9"]),
)
def test_the_version_is_never_lowered_and_never_raised_past_the_binaries(
    brokers: list[tuple[str, str, bool]], wanted: str
) -> None:
    instances = [broker(n, version, image, ready=up) for n, (version, image, up) in enumerate(brokers)]
    newest = max(version for version, _, _ in brokers)
    upgrade = plan_upgrade(
        spec(wanted, len(instances)),
        range(len(instances)),
        observe(*instances),
        {"image": NEW},
        default="2.8",
    )
    assert upgrade.version is not None
    assert upgrade.version >= newest
    assert upgrade.version in (newest, wanted)
    if upgrade.version > newest:
        assert all(image == NEW and up for _, image, up in brokers)
    assert bool(upgrade.refused) == (wanted < newest)
    assert upgrade.running == min(version for version, _, _ in brokers)


def test_a_version_in_the_settings_takes_precedence() -> None:
    given_in_settings = BrokerClusterSpec.model_construct(
        version=None, replicas=1, config={PROTOCOL_VERSION: "3.9"}
    )
    upgrade = plan_upgrade(given_in_settings, BROKERS, observe(broker(0, "3.8")), {"image": NEW})
    assert (upgrade.version, upgrade.running) == (None, "3.8")


@pytest.mark.parametrize("version", ["3.9", "3.9.1", "3.9-IV0", "3.8", "2.8", "4.0", "1.1"])
def test_only_supported_versions_are_allowed(version: str) -> None:
    served = not broker_settings_problems({PROTOCOL_VERSION: release_of(version)})[0]
    assert served or not version.startswith("3.9")
    assert not served or not version.startswith("4")
    assert (version_problem(version) is None) == served
    cluster, problems = parse_resource("BrokerCluster", {"name": "a"}, {"replicas": 1, "version": version})
    assert (cluster is not None) == served, problems


@pytest.mark.parametrize("version", ["latest", "3", "3.9-beta", "v3.9", ""])
def test_an_invalid_version_is_rejected(version: str) -> None:
    _, problems = parse_resource("BrokerCluster", {"name": "a"}, {"replicas": 1, "version": version})
    assert [problem.path for problem in problems] == ["spec.version"]


def test_a_version_in_two_fields_is_rejected() -> None:
    content = {"replicas": 1, "version": "3.9", "config": {PROTOCOL_VERSION: DEFAULT_PROTOCOL_VERSION}}
    _, problems = parse_resource("BrokerCluster", {"name": "a"}, content)
    assert [problem.path for problem in problems] == ["spec.version"]


def test_the_default_version_causes_no_bounce() -> None:
    brokers = [broker(b, None, NEW) for b in range(3)]
    upgrade = plan_upgrade(spec("3.9"), BROKERS, observe(*brokers), {"image": NEW})
    assert (upgrade.version, upgrade.status, upgrade.running) == (None, None, "3.9")


class Upgraded(SimulatedCluster):
    """Brokers with an older image and protocol version, started by an earlier operator."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[tuple[str, str]] = []

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        if launch is not None and launch.static.get("image") == NEW:
            self.starts.append((launch.static["image"], launch.static.get(PROTOCOL_VERSION, "3.9")))
        await super().start_broker(cluster, broker, launch)


def test_an_upgrade_has_two_rolls_with_progress_in_the_status() -> None:
    fake = Upgraded()
    sim = OperatorSimulation(fake)
    fake.broker_traits = {"image": OLD}
    sim.apply_cluster(3)
    sim.reconcile_until_ready()
    for number in range(3):
        fake.brokers[number].launch = BrokerLaunch("old", {"image": OLD, PROTOCOL_VERSION: "3.8"})
    fake.broker_traits = {"image": NEW}
    sim.apply_cluster(3, version="3.9")
    seen: list[tuple[str, str]] = []

    def over() -> bool:
        status = sim.status()
        assert isinstance(status, BrokerClusterStatus)
        now = (status.version, status.upgrade.phase if status.upgrade else "")
        if status.upgrade is not None and now not in seen:
            seen.append(now)
        return bool(seen) and sim.condition("BrokerCluster/demo")[0] == "True"

    sim.reconcile()
    sim.reconcile_until(over, reconciles_max=400)
    assert fake.starts == [(NEW, "3.8")] * 3 + [(NEW, "3.9")] * 3
    assert seen == [("3.8", "Binaries"), ("3.8", "Protocol")]
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    assert (status.version, status.upgrade) == ("3.9", None)
    assert fake.max_unavailable == 1


def test_an_image_that_does_not_start_keeps_the_version() -> None:
    fake = Upgraded()
    sim = OperatorSimulation(fake)
    fake.broker_traits = {"image": OLD}
    sim.apply_cluster(3)
    sim.reconcile_until_ready()
    for number in range(3):
        fake.brokers[number].launch = BrokerLaunch("old", {"image": OLD, PROTOCOL_VERSION: "3.8"})
    fake.broker_traits = {"image": NEW}
    sim.apply_cluster(3, version="3.9")
    sim.reconcile()
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    assert status.rollout is not None
    fake.broken_hashes.add(status.rollout.target_hash)
    sim.reconcile_until(lambda: sim.condition("BrokerCluster/demo")[1] == "RollStalled")
    for _ in range(20):
        sim.reconcile()
    assert {version for _, version in fake.starts} == {"3.8"}
    assert len(fake.live()) == 2
    fake.broker_traits = {"image": OLD}
    sim.apply_cluster(3)
    sim.reconcile_until(lambda: len(fake.live()) == 3)
