"""group.instance.id with a broker that is too old for it: an error, as of Kafka's own consumer.

The broker is ours, cut to what Kafka 2.2 serves of JoinGroup: version 4.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client import blocking, errors
from ottla.local.processes import ChildProcess, wait_until
from tests.judges.java_member import java_member
from tests.oracles import JUDGES, needs_kafka_jars

pytestmark = pytest.mark.timeout(300)

TOPIC = "t"
OLD_BROKER = """\
import runpy, sys
from ottla.protocol.messages import JoinGroupRequest
from ottla.server.dispatch.dispatcher import Route

init = Route.__init__

def cut(self, request_class, *arguments, **more):
    init(self, request_class, *arguments, **more)
    if request_class is JoinGroupRequest:
        self.max_version = 4

Route.__init__ = cut
runpy.run_path(PATH, run_name="__main__")
"""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("old")
    ready = directory / "ready"
    script = OLD_BROKER.replace("PATH", repr(str(JUDGES / "one_broker.py")))
    command = [sys.executable, "-c", script, str(directory / "data"), str(ready)]
    broker = ChildProcess("old broker", command, log=directory / "broker.log")
    broker.start()
    try:
        assert wait_until(lambda: ready.exists() or not broker.running, timeout_s=120)
        assert ready.exists(), broker.log_tail()
        yield f"127.0.0.1:{ready.read_text()}"
    finally:
        broker.stop(timeout_s=60)


def test_poll_raises_the_errors_of_the_java_consumer(bootstrap: str, tmp_path: Path) -> None:
    needs_kafka_jars()
    message = (
        r"JoinGroup up to version 4; version 5 is needed; group\.instance\.id=one needs brokers of Kafka 2\.3"
    )
    with blocking.Consumer(bootstrap_servers=bootstrap, group_id="g", group_instance_id="one") as consumer:
        consumer.subscribe([TOPIC])
        for _ in range(2):
            with pytest.raises(errors.UnsupportedVersionError, match=message):
                consumer.poll(60)
    with java_member(tmp_path, bootstrap, TOPIC, group_instance_id="one") as java:
        assert java.wait_for("failed").startswith("UnsupportedVersionException")


def test_without_an_instance_id_the_consumer_is_an_ordinary_member(bootstrap: str) -> None:
    with blocking.Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_and_wait(TOPIC, b"one")
    with blocking.Consumer(
        bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([TOPIC])
        assert consumer.getone().value == b"one"
        consumer.commit()
