"""Each alert of the chart fires over the series of a fault, and not without it: promtool evaluates them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.judges.prometheus import promtool
from tests.monitoring import ALERTS, PAGE, alerts

DAY_MS = 86_400_000
"""The series begin on 1 January 1970."""
BROKER = '{namespace="shop",cluster="demo",instance="demo-brokers-0"}'
CLUSTER = '{namespace="shop",cluster="demo"}'
ROLLING = '{namespace="shop",cluster="demo",type="Rolling",status="%s",reason="%s"}'

Series = dict[str, str]


class Case(NamedTuple):
    """Series by which an alert fires, and those by which it does not, after `minutes`."""

    fires: Series
    quiet: Series
    minutes: int = 20


def gauge(name: str, fires: str, quiet: str, labels: str = CLUSTER, minutes: int = 20) -> Case:
    return Case({name + labels: fires}, {name + labels: quiet}, minutes)


def controllers(first: str, second: str) -> Series:
    labels = '{namespace="shop",cluster="demo",instance="%d"}'
    name = f"kafka_controller_kafkacontroller_activecontrollercount{labels}"
    return {name % 0: first, name % 1: second}


def down(metric: str, up: str) -> Series:
    """A target that is scraped for ten minutes, and has this `up`."""
    return {f"up{BROKER}": up, metric + BROKER: "3x10 _x60"}


def volume(available: str, pod: str = "demo-brokers-0", namespace: str = "shop") -> Series:
    claim = f'{{namespace="{namespace}",persistentvolumeclaim="data-{pod}"}}'
    return {
        f"kubelet_volume_stats_available_bytes{claim}": available,
        f"kubelet_volume_stats_capacity_bytes{claim}": "1000000x1000",
        f"ottla_operator_cluster_ready{CLUSTER}": "1x1000",
    }


def roll(outdated: str, status: str, reason: str) -> Series:
    return {
        f"ottla_operator_outdated_brokers{CLUSTER}": outdated,
        f"ottla_operator_cluster_condition{ROLLING % (status, reason)}": "1x200",
    }


def lag(lag: str, limit: str) -> Series:
    labels = '{namespace="shop",cluster="demo",consumergroup="billing"}'
    return {
        f"ottla_operator_group_lag_records{labels}": lag,
        f"ottla_operator_group_max_lag_records{labels}": limit,
    }


def audit(status: str) -> Series:
    return {f'ottla_audit_windows{{namespace="shop",instance="audit",tier="lake",status="{status}"}}': "2x60"}


def certificate(days: int) -> Series:
    labels = '{resource_namespace="shop",cluster="demo",type="cluster-ca"}'
    return {f"strimzi_certificate_expiration_timestamp_ms{labels}": f"{days * DAY_MS}x60"}


_R, _C = "kafka_server_replicamanager_", "kafka_controller_kafkacontroller_"
CASES: dict[str, list[Case]] = {
    "OttlaNoController": [Case(controllers("0x60", "0x60"), controllers("1x60", "0x60"))],
    "OttlaSeveralControllers": [Case(controllers("1x60", "1x60"), controllers("0x60", "1x60"))],
    "OttlaOfflinePartitions": [gauge(f"{_C}offlinepartitionscount", "0x5 3x60", "0x60")],
    "OttlaUnderMinIsr": [gauge(f"{_R}underminisrpartitioncount", "1x60", "1x2 0x60")],
    "OttlaUnderReplicated": [gauge(f"{_R}underreplicatedpartitions", "1x60", "1x20 0x60", minutes=40)],
    "OttlaUncleanLeaderElection": [
        gauge("kafka_controller_controllerstats_uncleanleaderelections_total", "0x10 2x60", "2x60")
    ],
    "OttlaBrokerDown": [
        Case(
            down("kafka_server_kafkaserver_brokerstate", "1x10 0x60"),
            down("kafka_server_kafkaserver_brokerstate", "1x60"),
        ),
        Case(
            down("kafka_server_kafkaserver_brokerstate", "1x10 0x60"),
            down("of_another_program", "1x10 0x60"),
        ),
    ],
    "OttlaZooKeeperSessionLost": [
        gauge("kafka_server_sessionexpirelistener_sessionstate", "1x5 0x60", "1x60", BROKER)
    ],
    "OttlaEventLoopBlocked": [
        gauge(
            "ottla_event_loop_lag_seconds",
            "0.6x60",
            "0.01x60",
            '{namespace="shop",instance="b",quantile="0.5"}',
        )
    ],
    "OttlaLogDirectoryFailed": [
        gauge("kafka_log_logmanager_offlinelogdirectorycount", "1x60", "0x60", BROKER)
    ],
    "OttlaVolumeFullSoon": [
        # A byte more than what is left in a day at this rate, and a slower one.
        Case(volume("999000-900x800"), volume("999000-300x800"), 480),
        # The volumes of another program, and of brokers that another operator runs.
        Case(volume("999000-900x800"), volume("999000-900x800", "postgres-0"), 480),
        Case(volume("999000-900x800"), volume("999000-900x800", namespace="other"), 480),
    ],
    "OttlaVolumeAlmostFull": [
        Case(volume("40000x60"), volume("60000x60")),
        Case(volume("40000x60", "demo-broker-1001-0"), volume("40000x60", "postgres-0")),
    ],
    "OttlaEventLoopBusy": [
        gauge("kafka_network_socketserver_networkprocessoravgidle_percent", "0.05x60", "0.5x60", BROKER)
    ],
    "OttlaGroupLagging": [
        Case(lag("11x60", "10x60"), lag("10x60", "10x60")),
        Case(lag("11x60", "10x60"), {name: value for name, value in lag("11x60", "").items() if value}),
    ],
    "OttlaClusterNotReady": [
        gauge("ottla_operator_cluster_ready", "0x60", "1x60"),
        Case(
            {f"ottla_operator_cluster_ready{CLUSTER}": "0x60"},
            {
                f"ottla_operator_cluster_ready{CLUSTER}": "0x60",
                f"ottla_operator_cluster_condition{ROLLING % ('True', 'Rolling')}": "1x60",
            },
        ),
    ],
    "OttlaRollStuck": [
        Case(roll("3x200", "True", "Rolling"), roll("0x200", "False", "NotRolling"), 100),
        # A broker restarts within each hour.
        Case(roll("3x200", "True", "Rolling"), roll("3x40 2x50 1x200", "True", "Rolling"), 100),
        Case(roll("0x200", "False", "Stalled"), roll("3x200", "False", "WaitingForWindow"), 100),
    ],
    "OttlaReassignmentStuck": [
        gauge("ottla_operator_partitions_to_move", "9x300", "99-1x300", minutes=180),
        gauge("ottla_operator_partitions_to_move", "9x300", "0x300", minutes=180),
    ],
    "OttlaCertificateExpires": [Case(certificate(13), certificate(15)), Case(certificate(2), certificate(4))],
    "OttlaNoOperator": [
        gauge("ottla_operator_leader", "1x10 _x60", "1x60", "", 30),
        gauge("ottla_operator_leader", "0x60", "1x60", "", 30),
        Case(
            {'ottla_operator_leader{instance="a"}': "0x60", 'ottla_operator_leader{instance="b"}': "0x60"},
            {'ottla_operator_leader{instance="a"}': "0x60", 'ottla_operator_leader{instance="b"}': "1x60"},
            30,
        ),
    ],
    "OttlaOperatorStalled": [
        gauge("ottla_operator_last_pass_timestamp_seconds", "0x60", "0+60x60", minutes=30)
    ],
    "OttlaPipelineDown": [
        Case(
            down("ottla_pipeline_batches_total", "1x10 0x60"),
            down("ottla_pipeline_batches_total", "1x60"),
            30,
        )
    ],
    "OttlaPipelineBehind": [
        gauge("ottla_pipeline_lag_records", "5+100x200", "9000-10x200", BROKER, 120),
        # It catches up meanwhile.
        gauge("ottla_pipeline_lag_records", "5+100x200", "9x100 0 9+100x200", BROKER, 120),
    ],
    "OttlaDeadLetters": [gauge("ottla_lake_dead_letters_total", "0x10 4x60", "4x60", BROKER)],
    "OttlaAuditIncomplete": [
        Case(audit("missing"), audit("complete")),
        Case(audit("duplicated"), audit("pending")),
        Case(audit("missing, duplicated"), audit("unknown")),
    ],
    "OttlaAuditBlind": [
        gauge("ottla_audit_problems", "1x60", "0x60", BROKER),
        gauge("ottla_audit_silent_producers", "2x60", "0x60", BROKER),
    ],
}


def outcome(alert: str, severity: str, series: Series, minutes: int, *, fires: bool) -> dict[str, Any]:
    """A test of promtool."""
    state = f'ALERTS{{alertname="{alert}",alertstate="firing",severity="{severity}"}}'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": f"count({state})", "eval_time": f"{minutes}m", "exp_samples": expected}
        ],
    }


def test_promtool_accepts_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))


def test_promtool_accepts_the_scrape_jobs_of_the_page(tmp_path: Path) -> None:
    jobs = re.findall(r"```yaml\n(scrape_configs:.+?)```", PAGE.read_text(), re.DOTALL)
    assert len(jobs) == 2
    for number, text in enumerate(jobs):
        file = tmp_path / f"{number}.yml"
        # Debian builds Prometheus without the discovery of Kubernetes.
        text = text.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
        file.write_text(text.replace("charts/ottla/alerts.yaml", str(ALERTS)))
        promtool("check", "config", str(file))


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == {rule["alert"] for rule in alerts()}


def rules_of(alert: str) -> list[dict[str, Any]]:
    return [rule for rule in alerts() if rule["alert"] == alert]


def test_every_alert_fires_when_it_must_and_only_then(tmp_path: Path) -> None:
    """Each over its own rules only: promtool evaluates all rules of a file at each time."""
    files = []
    for name, cases in CASES.items():
        rules = rules_of(name)
        own = tmp_path / f"{name}.rules.yaml"
        own.write_text(json.dumps({"groups": [{"name": "own", "rules": rules}]}))
        tests = []
        for number, case in enumerate(cases):
            severity = rules[min(number, len(rules) - 1)]["labels"]["severity"]
            tests.append(outcome(name, severity, case.fires, case.minutes, fires=True))
            tests.append(outcome(name, severity, case.quiet, case.minutes, fires=False))
        file = tmp_path / f"{name}.yaml"
        interval = "5m" if max(case.minutes for case in cases) > 100 else "1m"
        document = {"rule_files": [str(own)], "evaluation_interval": interval, "tests": tests}
        file.write_text(json.dumps(document))
        files.append(str(file))
    promtool("test", "rules", *files)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_wrong_expectation_is_found(tmp_path: Path, wrong: bool) -> None:
    case = CASES["OttlaOfflinePartitions"][0]
    test = outcome("OttlaOfflinePartitions", "critical", case.fires, 20, fires=not wrong)
    file = tmp_path / "alerts_test.yaml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    if wrong:
        with pytest.raises(AssertionError, match="FAILED"):
            promtool("test", "rules", str(file))
    else:
        promtool("test", "rules", str(file))
