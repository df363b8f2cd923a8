"""`ottla operator`: runs the operator on Kubernetes until SIGTERM or SIGINT.

Run by the chart's Deployment, one at a time. Serves /healthz and /metrics; has no files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from aiohttp import web
from prometheus_client import disable_created_metrics

from ottla import logs
from ottla_operator.kubernetes import handlers
from ottla_operator.kubernetes.api import Api, load_config
from ottla_operator.kubernetes.controller import Controller
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics

log = logging.getLogger(__name__)

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
    "--allow-sidecars",
    is_flag=True,
    help="Allow additional containers in pod templates. They get the operator's security context.",
)
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"])
)
def operator(
    namespaces: tuple[str, ...], resync_s: float, http_port: int, allow_sidecars: bool, log_level: str
) -> None:
    """Run the operator on Kubernetes, for the custom resources of ottla.dev.

    Environment: OTTLA_BROKER_IMAGE, OTTLA_ZOOKEEPER_IMAGE, OTTLA_PIPELINE_IMAGE and OTTLA_IMAGE_PULL_POLICY
    for the images; OTTLA_DRIVER_ROLE for the ClusterRole of pipelines' drivers.
    """
    logs.configure(log_level)
    for noisy in ("kopf", "aiohttp.access", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        load_config()
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    try:
        images = replace(images_from(dict(os.environ)), allow_sidecars=allow_sidecars)
        asyncio.run(_run(images, namespaces, resync_s, http_port))
    except OSError as error:
        raise click.ClickException(f"port {http_port}: {error.strerror}") from None


def images_from(environment: dict[str, str]) -> Images:
    """The images and settings of the operator's environment variables."""
    default = Images()
    broker = environment.get("OTTLA_BROKER_IMAGE") or default.broker
    return Images(
        broker=broker,
        zookeeper=environment.get("OTTLA_ZOOKEEPER_IMAGE") or broker,
        pipeline=environment.get("OTTLA_PIPELINE_IMAGE") or default.pipeline,
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


async def _run(images: Images, namespaces: Sequence[str], resync_s: float, http_port: int) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics()
    api = Api(metrics.count_request)
    controller = Controller(
        api,
        images,
        metrics,
        lambda: time.time_ns() // 1_000_000,
        resync_s,
        namespaces,
    )
    server = await _serve(http_port, controller, metrics) if http_port else None
    watching = loop.create_task(handlers.watch(controller.enqueue, namespaces, stopping))
    watching.add_done_callback(lambda _: stopping.set())
    try:
        await controller.run(stopping)
        await watching
    finally:
        if server is not None:
            await server.cleanup()
        api.close()


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
