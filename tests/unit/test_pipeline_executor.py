"""The command that an executor's pod becomes, out of the environment that Spark's scheduler gives it."""

from __future__ import annotations

import pytest

from ottla_pipeline.executor import BACKEND, ExecutorEnvironmentError, backend_command
from ottla_pipeline.spark import spark_jars

GIVEN = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@lake-driver-0.lake-driver.shop.svc:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "563m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "lake-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dfirst=a b",
    "PATH": "/bin",
}


def test_the_backend_gets_what_spark_says() -> None:
    command = backend_command("/usr/bin/java", GIVEN)
    assert command[0] == "/usr/bin/java"
    backend = command.index(BACKEND)
    assert command[backend - 2 : backend] == ["-cp", f"{spark_jars()}/*"]
    options = command[backend + 1 :]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--driver-url": GIVEN["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.3",
        "--resourceProfileId": "0",
        "--podName": "lake-exec-3",
    }
    assert command.index("-Dfirst=a b") < command.index("-Dlast=1") < command.index("-Xmx563m")


def test_a_class_path_of_the_jobs_own_comes_first() -> None:
    command = backend_command("java", {**GIVEN, "SPARK_CLASSPATH": "/own/*"})
    assert command[command.index("-cp") + 1] == f"/own/*:{spark_jars()}/*"


def test_elsewhere_it_says_what_is_missing() -> None:
    with pytest.raises(ExecutorEnvironmentError, match="SPARK_DRIVER_URL, SPARK_EXECUTOR_POD_IP not set"):
        backend_command("java", {**GIVEN, "SPARK_DRIVER_URL": "", "SPARK_EXECUTOR_POD_IP": ""})
