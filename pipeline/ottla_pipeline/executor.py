"""Entry point of an executor's pod on Kubernetes: replaces itself with Spark's executor backend.

Spark's scheduler for Kubernetes starts executor containers with all parameters in the environment and
leaves the command line to the image. `python -m ottla_pipeline.executor` is that command; its arguments
are ignored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from ottla_pipeline.spark import LOG_CONFIG, JavaMissing, check_java, spark_jars

BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION: Final = "SPARK_JAVA_OPT_"

# The backend's options by the variables that hold their values.
_OPTIONS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


class ExecutorEnvironmentError(Exception):
    """The environment lacks variables that Spark's scheduler sets for an executor; the message names them."""


def backend_command(java: str, environment: Mapping[str, str]) -> list[str]:
    """The command line of the executor backend. Raises ExecutorEnvironmentError."""
    memory = "SPARK_EXECUTOR_MEMORY"
    missing = [name for name in (memory, *_OPTIONS.values()) if not environment.get(name)]
    if missing:
        raise ExecutorEnvironmentError(
            f"not started by Spark's scheduler for Kubernetes: {', '.join(missing)} not set"
        )
    numbered = {
        int(name.removeprefix(_JAVA_OPTION)): value
        for name, value in environment.items()
        if name.removeprefix(_JAVA_OPTION).isdecimal() and name.startswith(_JAVA_OPTION)
    }
    paths = [environment.get("SPARK_CLASSPATH", ""), f"{spark_jars()}/*"]
    return [
        java,
        f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}",
        *(value for _, value in sorted(numbered.items())),
        f"-Xms{environment[memory]}",
        f"-Xmx{environment[memory]}",
        *("-cp", ":".join(path for path in paths if path)),
        BACKEND,
        *(word for option, name in _OPTIONS.items() for word in (option, environment[name])),
    ]


def main() -> None:
    try:
        command = backend_command(check_java(), os.environ)
    except (JavaMissing, ExecutorEnvironmentError) as error:
        sys.exit(f"executor: {error}")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
