"""ottla.pytest as users have it: pytest runs of their own, by pytester, in processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.selection import ROOT

pytest_plugins = ["pytester"]

USERS = """
    import kafka
    import pytest

    ports, topics = set(), set()

    def send(broker, topic, value=b"one", **settings):
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, **settings)
        try:
            return producer.send(topic, value).get(60)
        finally:
            producer.close()

    @pytest.mark.parametrize("number", [1, 2])
    def test_each_test_has_its_own_topic_and_all_share_the_broker(ottla_broker, ottla_topic, number):
        assert send(ottla_broker, ottla_topic).offset == 0
        (record,) = ottla_broker.wait_for_records(ottla_topic, 1)
        assert record.value == b"one"
        ports.add(ottla_broker.port)
        topics.add(ottla_topic)
        assert (len(ports), len(topics)) == (1, number)

    @pytest.mark.ottla(partitions=3, config={"retention.ms": "1000000"})
    def test_a_topic_as_it_is_marked(ottla_broker, ottla_topic):
        admin = kafka.KafkaAdminClient(bootstrap_servers=ottla_broker.bootstrap)
        (found,) = admin.describe_topics([ottla_topic])
        assert len(found["partitions"]) == 3
        admin.close()

    def test_a_test_that_breaks_the_broker(ottla_broker, ottla_topic):
        ottla_broker.fail("PRODUCE", "KAFKA_STORAGE_ERROR", times=None)
        ottla_broker.kill()

    def test_a_test_that_finds_a_working_broker(ottla_broker, ottla_topic):
        assert send(ottla_broker, ottla_topic, retries=0, enable_idempotence=False).offset == 0

    def test_a_test_that_leaves_a_fault(ottla_broker):
        ottla_broker.fail("PRODUCE", "KAFKA_STORAGE_ERROR", times=None)

    def test_a_test_after_the_fault(ottla_broker, ottla_topic):
        assert send(ottla_broker, ottla_topic, retries=0, enable_idempotence=False).offset == 0

    @pytest.mark.ottla(settings={"auto.create.topics.enable": "false"})
    def test_a_separate_broker(ottla_broker, fresh_ottla_broker):
        assert fresh_ottla_broker.port != ottla_broker.port
        fresh_ottla_broker.create_topic("mine")
        assert send(fresh_ottla_broker, "mine").offset == 0
        with pytest.raises(Exception):
            send(fresh_ottla_broker, "nobodys", max_block_ms=500)

    def test_settings_of_the_shared_broker(ottla_broker):
        assert send(ottla_broker, "made-by-the-first-who-asks").partition in range(7)
        admin = kafka.KafkaAdminClient(bootstrap_servers=ottla_broker.bootstrap)
        assert len(admin.describe_topics(["made-by-the-first-who-asks"])[0]["partitions"]) == 7
        admin.close()
"""


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USERS)
    pytester.makeini("[pytest]\naddopts = --strict-markers\nottla_settings =\n    num.partitions=7\n")
    result = pytester.runpytest_subprocess("-p", "ottla.pytest", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=9)


def test_no_process_is_left_when_a_run_is_killed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, signal

        def test_dies(ottla_broker):
            print(f"pid={ottla_broker.pid}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = pytester.runpytest_subprocess("-p", "ottla.pytest", "-s")
    (line,) = [line for line in result.outlines if "pid=" in line]
    pid = int(line.rpartition("pid=")[2])
    gone = "import os, sys, time\nfor _ in range(1200):\n    time.sleep(0.05)\n"
    gone += f"    try: os.kill({pid}, 0)\n    except ProcessLookupError: sys.exit(0)\nsys.exit(1)"
    subprocess.run([sys.executable, "-c", gone], check=True)


def test_a_test_run_without_the_fixtures_imports_and_starts_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded(request):
            loaded = [name for name in sys.modules if name.startswith("ottla")]
            assert sorted(loaded) == ["ottla", "ottla.pytest"]
        """
    )
    pytester.runpytest_subprocess("-p", "ottla.pytest").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("ini", "marker", "problem"),
    [
        ("ottla_settings = num.partitions", "", "ottla_settings: num.partitions: must be NAME=VALUE"),
        ("", "@pytest.mark.ottla(partition=3)", "not partition"),
        ("", "@pytest.mark.ottla(settings={})", "needs the fixture `fresh_ottla_broker`"),
    ],
)
def test_errors_are_reported(pytester: pytest.Pytester, ini: str, marker: str, problem: str) -> None:
    pytester.makepyfile(f"import pytest\n\n{marker}\ndef test_it(ottla_topic):\n    pass\n")
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest_subprocess("-p", "ottla.pytest")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{problem}*"])


@pytest.mark.parametrize("page", ["docs/guides/testing.md", "README.md"])
def test_the_documents_examples_run(pytester: pytest.Pytester, page: str) -> None:
    text = (ROOT / page).read_text()
    python = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    tests = "\n".join(block for block in python if "def test_" in block and "@simulated" not in block)
    pytester.makepyfile(tests)
    result = pytester.runpytest_subprocess("-p", "ottla.pytest", "--strict-markers")
    result.assert_outcomes(passed=len(re.findall(r"^def test_", tests, re.MULTILINE)))
