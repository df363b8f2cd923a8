"""What the jobs say of a cluster that is not there, and of what went wrong inside Spark."""

from __future__ import annotations

import socket

import pytest

from ottla.local.processes import free_port
from ottla_pipeline import errors
from ottla_pipeline.errors import error_summary


def test_one_broker_that_can_be_connected_to_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        errors.check_reachable(f"127.0.0.1:{free_port()},127.0.0.1:{server.getsockname()[1]}")


def test_a_cluster_that_is_not_there_is_told_address_by_address() -> None:
    first, second = free_port(), free_port()
    with pytest.raises(errors.BrokersUnreachable) as caught:
        errors.check_reachable(f"127.0.0.1:{first}, PLAINTEXT://127.0.0.1:{second}")
    refused = "Connection refused"
    expected = f"(127.0.0.1:{first}: {refused}; 127.0.0.1:{second}: {refused})"
    assert expected in str(caught.value)


@pytest.mark.parametrize("bootstrap", ["", "host", "host:", ":1", "host:0", "host:99999", "host:x"])
def test_a_text_that_is_no_bootstrap_list_is_refused(bootstrap: str) -> None:
    with pytest.raises(errors.BrokersUnreachable, match=r"must be HOST:PORT\[,HOST:PORT"):
        errors.check_reachable(bootstrap)


def test_the_error_of_a_task_in_python_is_found_among_the_stacks() -> None:
    message = (
        "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted: "
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "/x/worker.py", line 1, in main\n    process()\n'
        "ottla_pipeline.broker_reader.ReadStalled: a-0 at offset 1 of 2: no record arrived for 60 s\n\n"
        "\tat org.apache.spark.Something.run(Something.scala:1)\n"
    )
    assert error_summary(RuntimeError(message)) == (
        "ottla_pipeline.broker_reader.ReadStalled: a-0 at offset 1 of 2: no record arrived for 60 s"
    )
