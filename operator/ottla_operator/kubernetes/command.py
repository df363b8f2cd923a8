"""`ottla operator`: runs the operator on Kubernetes until SIGTERM or SIGINT.

Run by the chart's Deployment. Of several with the same `--lease`, one works and the others stand by. Serves
/healthz and /metrics; has no files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from aiohttp import web
from prometheus_client import disable_created_metrics

from ottla import logs
from ottla_operator.kubernetes import admission, handlers
from ottla_operator.kubernetes.api import Api, ApiError, load_config
from ottla_operator.kubernetes.controller import Controller
from ottla_operator.kubernetes.lease import Election
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.release import release_all
from ottla_operator.kubernetes.webhook_certificate import WebhookCertificate

log = logging.getLogger(__name__)

# The operator's pod may take its whole grace period to end, and its Lease to be free.
_RELEASE_WAIT_S: Final = 90
_WEBHOOK_ENDS_S: Final = 5
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@click.command(short_help="Run the operator on Kubernetes.")
@click.option(
    "--namespace", "namespaces", multiple=True, help="Watch only this namespace; repeatable. Default: all."
)
@click.option(
    "--resync-s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    help="Reconcile every cluster at least this often.",
)
@click.option(
    "--http-port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port of /healthz and /metrics; 0: none.",
)
@click.option(
    "--lease",
    metavar="NAME",
    help="Work only while holding this Lease of the pod's namespace, which other operators compete for.",
)
@click.option(
    "--release",
    is_flag=True,
    help="Release all resources and exit, as the last step of an uninstallation: their deletion no longer "
    "waits for an operator, and their status says that there is none. Needs --lease.",
)
@click.option(
    "--allow-sidecars",
    is_flag=True,
    help="Allow additional containers in pod templates. They get the operator's security context.",
)
@click.option(
    "--webhook",
    metavar="NAME",
    help="Serve the validating webhook behind the Service NAME, with the certificate in the Secret NAME; in "
    "a pod.",
)
@click.option(
    "--webhook-configuration",
    metavar="NAME",
    default="",
    help="Make and renew the webhook's certificate, and keep its authority in this "
    "ValidatingWebhookConfiguration. Default: others do it.",
)
@click.option(
    "--webhook-port",
    default=9443,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port of the webhook.",
)
@click.option(
    "--rolling-clusters-max",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many clusters may roll at the same time because of a new version of the operator; 0: any "
    "number. Changes of resources do not count.",
)
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"])
)
def operator(
    namespaces: tuple[str, ...],
    resync_s: float,
    http_port: int,
    lease: str | None,
    release: bool,
    allow_sidecars: bool,
    webhook: str | None,
    webhook_configuration: str,
    webhook_port: int,
    rolling_clusters_max: int,
    log_level: str,
) -> None:
    """Run the operator on Kubernetes, for the custom resources of ottla.dev.

    Environment: OTTLA_BROKER_IMAGE, OTTLA_ZOOKEEPER_IMAGE, OTTLA_PIPELINE_IMAGE, OTTLA_CONNECT_IMAGE and
    OTTLA_IMAGE_PULL_POLICY for the images; OTTLA_DRIVER_ROLE for the ClusterRole of pipelines' drivers.
    """
    logs.configure(log_level)
    for noisy in ("kopf", "aiohttp.access", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It logs each refusal of the webhook as an error.
    logging.getLogger("kopf.objects").setLevel(logging.CRITICAL)
    try:
        load_config()
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    try:
        images = replace(images_from(dict(os.environ)), allow_sidecars=allow_sidecars)
        if lease and not images.operator_namespace:
            raise click.UsageError("--lease needs a pod, whose namespace the Lease is in")
        if lease:
            images = replace(images, operator=f"{images.operator_namespace}/{lease}")
        if webhook and not images.operator_namespace:
            raise click.UsageError("--webhook needs a pod, whose namespace its Service is in")
        if release:
            if not lease:
                raise click.UsageError("--release needs --lease")
            asyncio.run(_release(images, namespaces, lease))
            return
        serving = _Webhook(webhook, webhook_configuration, webhook_port) if webhook else None
        lost = asyncio.run(
            _run(images, namespaces, resync_s, http_port, lease or "", rolling_clusters_max, serving)
        )
    except ApiError as error:
        raise click.ClickException(error.message) from None
    except TimeoutError:
        raise click.ClickException(f"the Lease {lease} is held: an operator still runs") from None
    except OSError as error:
        raise click.ClickException(f"port {http_port}: {error.strerror}") from None
    if lost:
        raise click.ClickException(lost)


def images_from(environment: dict[str, str]) -> Images:
    """The images and settings of the operator's environment variables."""
    default = Images()
    broker = environment.get("OTTLA_BROKER_IMAGE") or default.broker
    return Images(
        broker=broker,
        zookeeper=environment.get("OTTLA_ZOOKEEPER_IMAGE") or broker,
        pipeline=environment.get("OTTLA_PIPELINE_IMAGE") or default.pipeline,
        connect=environment.get("OTTLA_CONNECT_IMAGE") or default.connect,
        driver_role=environment.get("OTTLA_DRIVER_ROLE") or default.driver_role,
        pull_policy=environment.get("OTTLA_IMAGE_PULL_POLICY") or default.pull_policy,
        operator_namespace=_own_namespace(),
    )


def _own_namespace() -> str:
    """The namespace of the operator's pod; "" outside of a pod."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class _Webhook:
    """The options of the webhook."""

    name: str
    configuration: str
    port: int

    async def serve(self, api: Api, images: Images, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set."""
        with TemporaryDirectory(prefix="webhook-") as folder:
            namespace = images.operator_namespace
            certificate = WebhookCertificate(
                api, namespace, self.name, self.configuration, Path(folder), _clock_ms, os.urandom
            )
            reviewer = admission.Reviewer(api, images.allow_sidecars, time.monotonic)
            await admission.serve(reviewer, certificate, self.port, stopping)


async def _run(
    images: Images,
    namespaces: Sequence[str],
    resync_s: float,
    http_port: int,
    lease: str,
    rolling_clusters_max: int,
    webhook: _Webhook | None,
) -> str:
    """Run until a signal. Returns why it ended without one, or ""."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics()
    api, lease_api, webhook_api = (Api(metrics.count_request) for _ in range(3))
    controller = Controller(
        api, images, metrics, _clock_ms, resync_s, namespaces, rolling_clusters_max=rolling_clusters_max
    )
    server = await _serve(http_port, controller, metrics) if http_port else None
    # Served before this operator leads, and also while it never does.
    serving = asyncio.ensure_future(webhook.serve(webhook_api, images, stopping)) if webhook else None
    try:
        if not lease:
            await _work(controller, namespaces, metrics, stopping)
            return ""
        # The pod's name: a container that is restarted in its pod needs not wait for the Lease to end.
        pod = socket.gethostname()
        election = Election(lease_api, images.operator_namespace, lease, pod, _clock_ms)
        if not await _first(election.acquire(), stopping):
            return ""
        holding = loop.create_task(election.hold())
        holding.add_done_callback(lambda _: stopping.set())
        await _work(controller, namespaces, metrics, stopping)
        if holding.done():
            return holding.result()
        holding.cancel()
        await election.release()
        return ""
    finally:
        if server is not None:
            await server.cleanup()
        if serving is not None:
            stopping.set()
            await asyncio.wait([serving], timeout=_WEBHOOK_ENDS_S)
        for each in (api, lease_api, webhook_api):
            each.close()


async def _release(images: Images, namespaces: Sequence[str], lease: str) -> None:
    """Release all resources, when the operator has ended. Raises ApiError or TimeoutError."""
    api = Api()
    election = Election(api, images.operator_namespace, lease, socket.gethostname(), _clock_ms)
    try:
        async with asyncio.timeout(_RELEASE_WAIT_S):
            await election.acquire()
        count = await release_all(api, images.operator, namespaces, _clock_ms)
        log.info("%d resources are released", count)
        await election.release()
    finally:
        api.close()


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def _first(work: Coroutine[Any, Any, None], stopping: asyncio.Event) -> bool:
    """Run `work` to its end, unless `stopping` is set before. Returns whether it ended."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return not stopping.is_set()


async def _work(
    controller: Controller, namespaces: Sequence[str], metrics: Metrics, stopping: asyncio.Event
) -> None:
    metrics.leads.set(1)
    watching = asyncio.ensure_future(handlers.watch(controller.enqueue, namespaces, stopping))
    watching.add_done_callback(lambda _: stopping.set())
    await controller.run(stopping)
    await watching
    metrics.leads.set(0)


async def _serve(port: int, controller: Controller, metrics: Metrics) -> web.AppRunner:
    async def healthz(_: web.Request) -> web.Response:
        problems = controller.unhealthy()
        return web.Response(
            text=f"unhealthy: {', '.join(problems)}\n" if problems else "ok\n",
            status=503 if problems else 200,
        )

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", show_metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
