"""The commands of `kubectl ottla`, installed as `kubectl-ottla`, which kubectl finds on the PATH.

All requests go through kubectl, with the caller's contexts, credentials and permissions. The plugin changes
annotations only, which are no part of the spec that a GitOps tool keeps; the operator executes the requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from ottla import __version__
from ottla_operator.backup.document import BackupError
from ottla_operator.backup.objects import newest
from ottla_operator.conditions import iso_time
from ottla_operator.kubectl.adopting import ExistingTopic, plan_adoption
from ottla_operator.kubectl.report import Part, Report, archive
from ottla_operator.kubectl.screen import overview, screen
from ottla_operator.kubectl.strimzi.conversion import STRIMZI, STRIMZI_CLUSTER, Conversion, convert
from ottla_operator.kubernetes.naming import (
    CLUSTER_LABEL,
    CONFIG_DIR,
    CONSOLE_LABEL,
    FINALIZER,
    PROPERTIES,
    broker_pod,
)
from ottla_operator.rebalance_command import Options, rebalance_options, run_rebalance
from ottla_operator.rehearsal.command import show_plan
from ottla_operator.resources import KINDS
from ottla_operator.resources.common import (
    APPROVE_ANNOTATION,
    BACKUP_ANNOTATION,
    FENCE_ANNOTATION,
    FENCE_NOW_ANNOTATION,
    GROUP,
    HIBERNATE_ANNOTATION,
    PAUSE_ANNOTATION,
    REASSIGN_ANNOTATION,
    REBALANCE_ANNOTATION,
    RESTART_ANNOTATION,
    RESTART_POD_ANNOTATION,
)
from ottla_operator.resources.loading import load_folder

_TIMEOUT_S = 60
_POLL_S = 2
_PLURAL = f"brokerclusters.{GROUP}"


class Kubectl:
    """kubectl with the global flags that the plugin was given."""

    def __init__(self) -> None:
        found = shutil.which("kubectl")
        if found is None:
            raise click.ClickException("kubectl is not on the PATH")
        self._command = [found]

    def add_flag(self, name: str, value: str) -> None:
        """Append a global flag; kubectl uses the last one of a name."""
        self._command += [f"--{name}", value]

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """The output of a kubectl command. Raises ClickException with its error."""
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                input=stdin,
            )
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"kubectl {arguments[0]} timed out after {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            raise click.ClickException(done.stderr.strip() or f"kubectl ended with {done.returncode}")
        return done.stdout

    def namespace(self) -> str:
        """The namespace of the flags, or that of the context."""
        flags = list(zip(self._command, self._command[1:], strict=False))
        given = [value for name, value in flags if name == "--namespace"]
        if given:
            return given[-1]
        return self.run("config", "view", "--minify", "-o", "jsonpath={..namespace}").strip() or "default"

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of `kubectl get`."""
        content = json.loads(self.run("get", "-o", "json", *arguments))
        return list(content["items"]) if "items" in content else [content]

    def exec(self, *arguments: str) -> None:
        """Replace this process by kubectl."""
        os.execv(self._command[0], [*self._command, *arguments])


F = TypeVar("F", bound=Callable[..., Any])


def _flag(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Kubectl).add_flag(str(parameter.name), value)


def _clusters(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The clusters of the namespace, for a completion, which must neither wait nor print errors."""
    try:
        kubectl = ctx.find_object(Kubectl) or Kubectl()
        names = kubectl.run("get", _PLURAL, "--output=name", "--request-timeout=1s").split()
    except click.ClickException:
        return []
    return [name for _, _, name in (each.partition("/") for each in names) if name.startswith(incomplete)]


def _global_flags(command: F) -> F:
    """Add the global flags to a command: kubectl accepts them before and after a command."""
    for name, more, text in (
        ("--context", (), "The context of the kubeconfig. Default: the current one."),
        ("--namespace", ("-n",), "The namespace. Default: that of the context."),
    ):
        command = click.option(name, *more, help=text, callback=_flag, expose_value=False)(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl ottla")
@_global_flags
@click.pass_context
def main(ctx: click.Context) -> None:
    """Show and operate Ottla's clusters on Kubernetes."""
    ctx.ensure_object(Kubectl)


@main.command()
@_global_flags
@click.argument("cluster", required=False, shell_complete=_clusters)
@click.option("-A", "--all-namespaces", is_flag=True, help="A line for each cluster of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@click.pass_obj
def status(kubectl: Kubectl, cluster: str | None, all_namespaces: bool, watch: bool) -> None:
    """Show the state of CLUSTER: operations in progress, and what brokers wait for.

    Without a name: the only cluster in the namespace, or a line for each cluster.
    """
    while True:
        text = _shown(kubectl, cluster, all_namespaces)
        if not watch:
            click.echo(text, nl=False)
            return
        click.clear()
        click.echo(text, nl=False)
        time.sleep(2)


def _shown(kubectl: Kubectl, cluster: str | None, all_namespaces: bool) -> str:
    if all_namespaces:
        return overview(kubectl.items(_PLURAL, "-A"))
    found = kubectl.items(_PLURAL, *([cluster] if cluster else []))
    if not found:
        raise click.ClickException("no BrokerCluster in this namespace")
    if len(found) > 1:
        return overview(found)
    name = found[0]["metadata"]["name"]
    plurals = ",".join(
        f"{model.definition.plural}.{GROUP}" for kind, model in KINDS.items() if kind != "BrokerCluster"
    )
    others = [
        item for item in kubectl.items(plurals) if item["spec"].get("clusterRef", {}).get("name") == name
    ]
    return screen(found[0], others, time.time_ns() // 1_000_000, _console(kubectl, name))


def _console(kubectl: Kubectl, cluster: str) -> dict[str, Any] | None:
    """The Service of the console, which the chart of a cluster makes; None without one, or without the right
    to see it."""
    try:
        found = kubectl.items("services", "-l", f"{CONSOLE_LABEL}={cluster}-console")
    except click.ClickException:
        return None
    return found[0] if found else None


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.pass_obj
def roll(kubectl: Kubectl, cluster: str) -> None:
    """Restart the brokers of CLUSTER one by one, or approve the rollout that waits for approval: of brokers,
    of ZooKeeper, or of both."""
    found = kubectl.items(_PLURAL, cluster)[0]
    by_approval = (found["spec"].get("rollingUpdate") or {}).get("strategy") == "OnApproval"
    revisions = _revisions_due(found.get("status") or {}) if by_approval else {}
    if revisions:
        approval = f"{APPROVE_ANNOTATION}={','.join(revisions.values())}"
        kubectl.run("annotate", _PLURAL, cluster, approval, "--overwrite")
        shown = ", ".join(f"{what} to revision {revision}" for what, revision in revisions.items())
        click.echo(f"approved: {cluster} rolls {shown}")
        return
    request = f"{RESTART_ANNOTATION}={iso_time(time.time_ns() // 1_000_000)}"
    kubectl.run("annotate", _PLURAL, cluster, request, "--overwrite")
    click.echo(f"rolling restart of {cluster} requested; kubectl ottla status {cluster} shows the progress")


def _revisions_due(status: Mapping[str, Any]) -> dict[str, str]:
    """The revisions that brokers and ZooKeeper servers still have to roll to."""
    rollout, zookeeper = status.get("rollout"), status.get("zookeeper")
    due = {"brokers": rollout["targetHash"]} if rollout else {}
    if zookeeper and zookeeper["updated"] < zookeeper["total"]:
        due["ZooKeeper"] = zookeeper["targetHash"]
    return due


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.option("--empty", "emptied", metavar="ID[,ID…]", help="Move every replica off these brokers.")
@click.option(
    "--release", is_flag=True, help="Withdraw the request: emptied brokers may hold replicas again."
)
@click.option("--wait", is_flag=True, help="Wait for completion; fails when the request is refused.")
@click.pass_obj
def reassign(kubectl: Kubectl, cluster: str, emptied: str | None, release: bool, wait: bool) -> None:
    """Balance the replicas of CLUSTER over its brokers, or move all replicas off some of them.

    An emptied broker gets no new replicas until --release or another reassign.
    """
    if release:
        if emptied is not None or wait:
            raise click.UsageError("--release excludes --empty and --wait")
        kubectl.run("annotate", _PLURAL, cluster, f"{REASSIGN_ANNOTATION}-")
        click.echo(f"every broker of {cluster} may hold replicas again")
        return
    request: dict[str, Any] = {"id": uuid.uuid4().hex[:12]}
    if emptied is not None:
        request["empty"] = _ids(emptied, "--empty")
    annotation = f"{REASSIGN_ANNOTATION}={json.dumps(request)}"
    kubectl.run("annotate", _PLURAL, cluster, annotation, "--overwrite")
    what = (
        f"emptying broker {', '.join(map(str, request['empty']))}" if emptied else "rebalancing the cluster"
    )
    click.echo(f"request {request['id']}: {what}; kubectl ottla status {cluster} shows the progress")
    if wait:
        _wait_for_request(kubectl, cluster, request["id"])


def _ids(text: str, option: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of broker ids", param_hint=option) from None


def _wait_for_request(kubectl: Kubectl, cluster: str, id_: str) -> None:
    printed = ""
    while True:
        status = kubectl.items(_PLURAL, cluster)[0].get("status") or {}
        request = status.get("reassignRequest") or {}
        if request.get("id") == id_:
            line = ": ".join(part for part in (request["phase"], request.get("message")) if part)
            if line != printed:
                click.echo(line)
                printed = line
            if request["phase"] == "Completed":
                return
            if request["phase"] == "Refused":
                raise click.exceptions.Exit(1)
        time.sleep(_POLL_S)


@main.command()
@_global_flags
@click.option(
    "-f",
    "--filename",
    "files",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="A file, or a folder of files, with resources of one cluster, as for kubectl apply.",
)
@click.option(
    "--fail",
    metavar="BROKER",
    help="Rehearse the loss of this broker, such as broker-2 or 2, at the worst step.",
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print JSON.")
@click.pass_obj
def plan(kubectl: Kubectl, files: Path, fail: str | None, output: str | None) -> None:
    """Show what applying the files would do to their cluster: steps, restarts, moves, time, clients.

    Nothing is changed. Exits with 0 when nothing would change, with 1 when something would, and with 2 when
    an apply would be refused, or on another error.
    """
    # Here, since it imports the operator, which takes as long as all that other commands need.
    from ottla_operator.kubectl.planning import Planner

    namespace = kubectl.namespace()
    show_plan(lambda broker: Planner(kubectl.run, namespace).plan(load_folder(files), broker), fail, output)


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@rebalance_options
@click.pass_obj
def rebalance(kubectl: Kubectl, /, cluster: str, **options: Any) -> None:
    """Show the proposed rebalance by load of CLUSTER and its progress; request, approve or cancel one.

    A proposal moves nothing until it is approved, unless spec.rebalance.mode is Auto.
    """
    requests = _KubernetesRequests(kubectl, cluster)
    run_rebalance(requests, Options(**options), f"kubectl ottla rebalance {cluster}", _POLL_S)


class _KubernetesRequests:
    """The interface `Requests`."""

    def __init__(self, kubectl: Kubectl, cluster: str) -> None:
        self._kubectl = kubectl
        self._cluster = cluster

    def state(self) -> Mapping[str, Any]:
        return (self._kubectl.items(_PLURAL, self._cluster)[0].get("status") or {}).get("rebalance") or {}

    def request(self, value: str) -> None:
        annotation = f"{REBALANCE_ANNOTATION}={value}"
        self._kubectl.run("annotate", _PLURAL, self._cluster, annotation, "--overwrite")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.pass_obj
def pause(kubectl: Kubectl, cluster: str) -> None:
    """Pause the reconciliation of CLUSTER: the operator observes it and changes nothing."""
    kubectl.run("annotate", _PLURAL, cluster, f"{PAUSE_ANNOTATION}=true", "--overwrite")
    click.echo(f"reconciliation of {cluster} is paused; kubectl ottla resume {cluster} resumes it")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.pass_obj
def resume(kubectl: Kubectl, cluster: str) -> None:
    """Resume the reconciliation of CLUSTER."""
    kubectl.run("annotate", _PLURAL, cluster, f"{PAUSE_ANNOTATION}-")
    click.echo(f"reconciliation of {cluster} is resumed")


@main.command()
@_global_flags
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.pass_obj
def release(kubectl: Kubectl, all_namespaces: bool) -> None:
    """Let resources be deleted when the operator is gone for good and was not uninstalled by its chart.

    Removes the operator's finalizer from all resources. An operator that still runs adds it again.
    """
    plurals = ",".join(f"{model.definition.plural}.{GROUP}" for model in KINDS.values())
    released = 0
    for item in kubectl.items(plurals, *(["-A"] if all_namespaces else [])):
        metadata = item["metadata"]
        finalizers = metadata.get("finalizers") or []
        if FINALIZER not in finalizers:
            continue
        left = [name for name in finalizers if name != FINALIZER]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": left}}
        plural = f"{KINDS[item['kind']].definition.plural}.{GROUP}"
        to = ("--namespace", metadata["namespace"], "patch", plural, metadata["name"])
        kubectl.run(*to, "--type=merge", "-p", json.dumps(patch))
        click.echo(f"{metadata['namespace']}/{item['kind']}/{metadata['name']} is released")
        released += 1
    if not released:
        click.echo("no resource has the operator's finalizer")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.argument("broker", type=click.IntRange(min=0))
@click.pass_obj
def restart(kubectl: Kubectl, cluster: str, broker: int) -> None:
    """Restart one BROKER of CLUSTER, when its partitions can spare it."""
    pod = broker_pod(cluster, broker)
    kubectl.run("annotate", "pod", pod, f"{RESTART_POD_ANNOTATION}=true", "--overwrite")
    click.echo(f"restart of {pod} requested; kubectl ottla status {cluster} shows the progress")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.argument("brokers", metavar="BROKER[,BROKER…]")
@click.option("--now", is_flag=True, help="Even if partitions fall below min.insync.replicas.")
@click.pass_obj
def fence(kubectl: Kubectl, cluster: str, brokers: str, now: bool) -> None:
    """Stop BROKER of CLUSTER and keep it stopped; its pod, its volume and its replicas stay.

    The list replaces the one before. Rolls wait until no broker is fenced.
    """
    listed = ",".join(map(str, _ids(brokers, "BROKER")))
    at_once = f"{FENCE_NOW_ANNOTATION}=true" if now else f"{FENCE_NOW_ANNOTATION}-"
    kubectl.run("annotate", _PLURAL, cluster, f"{FENCE_ANNOTATION}={listed}", at_once, "--overwrite")
    click.echo(f"broker {listed} of {cluster} is fenced; kubectl ottla unfence {cluster} ends it")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.pass_obj
def unfence(kubectl: Kubectl, cluster: str) -> None:
    """Start all fenced brokers of CLUSTER again."""
    kubectl.run("annotate", _PLURAL, cluster, f"{FENCE_ANNOTATION}-", f"{FENCE_NOW_ANNOTATION}-")
    click.echo(f"no broker of {cluster} is fenced any more")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.pass_obj
def hibernate(kubectl: Kubectl, cluster: str) -> None:
    """Stop all brokers and ZooKeeper of CLUSTER, and keep all data."""
    kubectl.run("annotate", _PLURAL, cluster, f"{HIBERNATE_ANNOTATION}=true", "--overwrite")
    click.echo(f"{cluster} hibernates; kubectl ottla wake {cluster} starts it again")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.pass_obj
def wake(kubectl: Kubectl, cluster: str) -> None:
    """Start a CLUSTER that hibernates."""
    kubectl.run("annotate", _PLURAL, cluster, f"{HIBERNATE_ANNOTATION}-")
    click.echo(f"{cluster} starts again; kubectl ottla status {cluster} shows the progress")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.option("-f", "--follow", is_flag=True)
@click.option("--since", default="10m", show_default=True, help="Only logs newer than this: 30s, 10m, 2h.")
@click.option(
    "--component",
    type=click.Choice(["broker", "zookeeper", "pipeline", "executor", "connect"]),
    help="Only pods of this component; pipeline: the drivers.",
)
@click.pass_obj
def logs(kubectl: Kubectl, cluster: str, follow: bool, since: str, component: str | None) -> None:
    """Print the logs of all pods of CLUSTER, each line prefixed with its pod."""
    selector = f"{CLUSTER_LABEL}={cluster}" + (f",{GROUP}/component={component}" if component else "")
    more = ["--follow"] if follow else []
    kubectl.exec(
        *("logs", "--selector", selector, "--prefix", "--tail=-1", f"--since={since}"),
        *("--max-log-requests=100", *more),
    )


@main.command(context_settings={"ignore_unknown_options": True})
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def shell(kubectl: Kubectl, cluster: str, command: tuple[str, ...]) -> None:
    """Run commands of ottla in a broker of CLUSTER, as that broker: topics list, consume clicks --tail 10.

    With COMMAND that one, else a shell that reads commands until Ctrl-D. The broker is a super user.
    """
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    kubectl.exec(*_in_broker(kubectl, cluster, "-i", *terminal), *(command or ("shell",)))


def _in_broker(kubectl: Kubectl, cluster: str, *flags: str) -> list[str]:
    """The arguments of kubectl that run `ottla` in a ready broker of the cluster, as that broker."""
    selector = f"{CLUSTER_LABEL}={cluster},{GROUP}/component=broker"
    ready = [
        pod["metadata"]["name"]
        for pod in kubectl.items("pods", "-l", selector)
        if any(status.get("ready") for status in (pod.get("status") or {}).get("containerStatuses") or ())
    ]
    if not ready:
        raise click.ClickException(f"no broker of {cluster} is ready")
    config = f"OTTLA_COMMAND_CONFIG={CONFIG_DIR}/{ready[0]}/{PROPERTIES}"
    return ["exec", *flags, ready[0], "-c", "broker", "--", "env", config, "ottla"]


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.argument("topics", metavar="[TOPIC…]", nargs=-1)
@click.option("--all", "all_topics", is_flag=True, help="All topics that no resource manages.")
@click.option("--hidden", is_flag=True, help="With --all: also topics whose name starts with _ or a dot.")
@click.option(
    "--reclaim-policy",
    type=click.Choice(["Retain", "Delete"]),
    default="Retain",
    show_default=True,
    help="Delete: the deletion of a created resource deletes its topic and the records.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be created.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml"]), help="Print the resources as YAML; create nothing."
)
@click.pass_obj
def adopt(
    kubectl: Kubectl,
    cluster: str,
    topics: tuple[str, ...],
    all_topics: bool,
    hidden: bool,
    reclaim_policy: str,
    dry_run: bool,
    output: str | None,
) -> None:
    """Create Topic resources for topics of CLUSTER that no resource manages: those named, or --all.

    Each states the partitions, replicas and settings that its topic has, which therefore does not change.
    """
    if bool(topics) == all_topics:
        raise click.UsageError("name topics, or give --all")
    found = kubectl.items(_PLURAL, cluster)[0]
    existing = _existing_topics(kubectl, cluster)
    for missing in sorted({*topics} - {topic.name for topic in existing}):
        raise click.ClickException(f"{cluster} has no topic {missing}")
    wanted = [topic for topic in existing if all_topics or topic.name in topics]
    resources = kubectl.items(f"{KINDS['Topic'].definition.plural}.{GROUP}")
    adoption = plan_adoption(
        found, wanted, resources, hidden=hidden or not all_topics, reclaim_policy=reclaim_policy
    )
    if output:
        click.echo(yaml.safe_dump_all(adoption.manifests, sort_keys=False), nl=False)
        return
    if adoption.manifests and not dry_run:
        kubectl.run("create", "-f", "-", stdin=yaml.safe_dump_all(adoption.manifests))
    for manifest in adoption.manifests:
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        topic = spec.get("topicName", name)
        shown = f"{topic}: {'would be' if dry_run else 'is'} Topic/{name}"
        click.echo(f"{shown}, {spec['partitions']} partitions of {spec['replicas']} replicas")
        for setting, value in adoption.changed.get(topic, {}).items():
            click.echo(f"{topic}: the cluster's topicDefaults set {setting}={value}")
    for topic, reason in adoption.left_out.items():
        click.echo(f"{topic}: left out, {reason}")
    if not adoption.manifests:
        click.echo("nothing to adopt")


def _existing_topics(kubectl: Kubectl, cluster: str) -> list[ExistingTopic]:
    """The topics in Kafka, as a broker describes them."""
    command = _in_broker(kubectl, cluster)
    listed = json.loads(kubectl.run(*command, "topics", "list", "--internal", "-o", "json"))
    described = json.loads(kubectl.run(*command, "topics", "describe", "--with-settings", "-o", "json"))
    settings = {topic["topic"]: topic["settings"] for topic in described}
    return [
        ExistingTopic(
            topic["topic"], topic["partitions"], topic["replicas"], settings.get(topic["topic"], {})
        )
        for topic in listed
    ]


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.option("--wait", is_flag=True, help="Wait until it is taken; fails when it fails.")
@click.pass_obj
def backup(kubectl: Kubectl, cluster: str, wait: bool) -> None:
    """Have a backup of CLUSTER's metadata taken now, to the destination in spec.backup."""
    spec = kubectl.items(_PLURAL, cluster)[0]["spec"].get("backup")
    if spec is None:
        raise click.ClickException(f"{cluster} has no spec.backup, which says where to")
    request = uuid.uuid4().hex[:12]
    kubectl.run("annotate", _PLURAL, cluster, f"{BACKUP_ANNOTATION}={request}", "--overwrite")
    if not wait:
        click.echo(f"backup of {cluster} to {spec['destination']} requested; its status is status.backup")
        return
    while True:
        state = (kubectl.items(_PLURAL, cluster)[0].get("status") or {}).get("backup") or {}
        if state.get("handledRequest") == request:
            break
        time.sleep(_POLL_S)
    if state.get("lastAttemptAt") != state.get("lastSuccessfulAt"):
        raise click.ClickException(state.get("message") or "it failed")
    click.echo(f"{state['lastObject']}: {state['message']}")


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="FILE|URL",
    help="A backup, or a folder of which the newest is taken: s3://…, gs://…, az://… with your credentials.",
)
@click.option("--endpoint", default="", metavar="URL", help="The endpoint of another store with S3's API.")
@click.option("--only", multiple=True, help="Only topics, settings, acls, quotas or offsets; repeatable.")
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@click.pass_obj
def restore(
    kubectl: Kubectl, cluster: str, source: str, endpoint: str, only: tuple[str, ...], dry_run: bool
) -> None:
    """Restore a backup into CLUSTER, by a broker. What exists there stays; what differs is printed.

    Your machine reads the backup and sends it to the broker, which needs no access to the store.
    """
    content = _backup_at(source, endpoint)
    options = [*(part for each in only for part in ("--only", each)), *(["--dry-run"] if dry_run else [])]
    command = _in_broker(kubectl, cluster, "-i")
    text = base64.b64encode(content).decode()
    click.echo(kubectl.run(*command, "restore", "--from", "-", "--base64", *options, stdin=text), nl=False)


def _backup_at(source: str, endpoint: str) -> bytes:
    """The content of a file, or of a backup in an object store."""
    if "://" not in source:
        try:
            return Path(source).read_bytes()
        except OSError as error:
            raise click.ClickException(f"{source}: {error.strerror}") from None
    try:
        url, content = asyncio.run(newest(source, endpoint))
    except BackupError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"from {url}")
    return content


@main.command()
@_global_flags
@click.argument("cluster", shell_complete=_clusters)
@click.option(
    "--operator-namespace", default="ottla-system", show_default=True, help="The namespace of the operator."
)
@click.option("-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="The archive to write.")
@click.pass_obj
def report(kubectl: Kubectl, cluster: str, operator_namespace: str, file: Path | None) -> None:
    """Collect what support needs to see of CLUSTER into one archive, without secrets.

    Its resources and objects, events, logs of all its pods and of the operator, nodes and storage classes.
    """
    kubectl.items(_PLURAL, cluster)
    now_ms = time.time_ns() // 1_000_000
    folder = f"ottla-{cluster}-{iso_time(now_ms).replace(':', '')}"
    target = file or Path(f"{folder}.tar.gz")
    paths: list[str] = []

    def counted(parts: Iterator[Part]) -> Iterator[Part]:
        for part in parts:
            paths.append(part.path)
            yield part

    parts = Report(kubectl.run, cluster, operator_namespace).parts()
    content = archive(folder, counted(parts), now_ms / 1000)
    try:
        target.write_bytes(content)
    except OSError as error:
        raise click.ClickException(f"{target}: {error.strerror}") from None
    click.echo(f"{target}: {len(paths)} files, {len(content) / 1e6:.1f} MB")
    if "not-read.txt" in paths:
        click.echo("Some objects could not be read: not-read.txt in the archive names them.", err=True)


@main.command(name="convert")
@_global_flags
@click.argument("cluster", required=False, shell_complete=_clusters)
@click.option("-f", "--filename", "files", multiple=True, help="A file; -: the input.")
@click.option("--into", metavar="NAMESPACE", help="The namespace of the results. Default: that of Strimzi's.")
@click.pass_obj
def convert_strimzi(kubectl: Kubectl, cluster: str | None, files: tuple[str, ...], into: str | None) -> None:
    """Print resources of Strimzi as resources of Ottla: those of files, or those of its CLUSTER.

    Nothing is applied. For each field that is left out, there is a line on stderr, with the reason.
    """
    if bool(files) == (cluster is not None):
        raise click.UsageError("either the name of a cluster, or -f FILE is required")
    done = convert(_read_yaml(files) if cluster is None else _strimzi_resources(kubectl, cluster))
    for result in done.results if into is not None else ():
        result["metadata"]["namespace"] = into
    if done.results:
        click.echo(yaml.safe_dump_all(done.results, sort_keys=False, allow_unicode=True), nl=False)
    _explain(done)
    if done.problems:
        raise click.exceptions.Exit(1)


def _read_yaml(files: tuple[str, ...]) -> Iterator[object]:
    for file in files:
        try:
            with click.open_file(file, encoding="utf-8") as opened:
                yield from yaml.safe_load_all(opened)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise click.ClickException(f"{file}: {error}") from None


def _strimzi_resources(kubectl: Kubectl, cluster: str) -> Iterator[object]:
    yield from kubectl.items(f"kafkas.{STRIMZI}", cluster)
    plurals = ",".join(f"{plural}.{STRIMZI}" for plural in ("kafkanodepools", "kafkatopics", "kafkausers"))
    yield from kubectl.items(plurals, "-l", f"{STRIMZI_CLUSTER}={cluster}")


def _explain(done: Conversion) -> None:
    """Print on stderr what is not converted, or differently."""
    for original in done.originals:
        notes = original.notes()
        if notes:
            click.echo(f"# {original.key}", err=True)
        for note in notes:
            click.echo(f"#   {note}", err=True)
    for problem in done.problems:
        click.echo(f"# to be corrected: {problem}", err=True)
    click.echo(f"# {len(done.results)} resources of Ottla from {len(done.originals)} of Strimzi", err=True)
