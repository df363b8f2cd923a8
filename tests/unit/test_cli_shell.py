"""`ottla shell`, and commands with a broker's server.properties."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.cli.session import Session, cluster_command
from ottla.cli.shell import completions, run_line
from tests.certificates import Authority


@pytest.fixture
def commands() -> click.Group:
    """Two commands in the place of ottla's."""

    @click.group()
    def group() -> None:
        pass

    @group.command()
    @click.argument("words", nargs=-1)
    def say(words: tuple[str, ...]) -> None:
        click.echo(" / ".join(words))

    @group.command()
    @click.option("--quietly", is_flag=True)
    def fail(quietly: bool) -> None:
        error = click.ClickException("it is refused")
        error.exit_code = 3
        raise error

    return group


def test_a_line_is_split_as_in_a_posix_shell(
    commands: click.Group, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_line(commands, "say 'one two' three  # a comment\n") == 0
    assert capsys.readouterr().out == "one two / three\n"


@pytest.mark.parametrize("line", ["", "   ", "# a comment"])
def test_a_line_without_a_command_does_nothing(commands: click.Group, line: str) -> None:
    assert run_line(commands, line) == 0


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("fail", 3, "it is refused"),
        ("fail --loudly", 2, "No such option"),
        ("fly", 2, "No such command"),
        ("say 'open", 2, "No closing quotation"),
        ("shell", 2, "this is the shell"),
    ],
)
def test_an_error_is_printed_and_the_shell_goes_on(
    commands: click.Group, line: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_line(commands, line) == code
    assert text in capsys.readouterr().err


def test_help_lists_the_commands_or_describes_one(
    commands: click.Group, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_line(commands, "help") == 0
    assert "say" in capsys.readouterr().out
    assert run_line(commands, "help fail") == 0
    assert "--quietly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ["fail", "say"]),
        ("f", ["fail"]),
        ("fail --q", ["--quietly"]),
        ("fail ", []),
        ("say 'open", []),
    ],
)
def test_words_are_completed(commands: click.Group, line: str, expected: list[str]) -> None:
    assert completions(commands, line) == expected


def test_real_commands_are_completed() -> None:
    assert completions(main, "topics de") == ["delete", "describe"]


def test_commands_of_a_pipe_end_with_the_first_that_fails() -> None:
    done = CliRunner().invoke(main, ["shell"], input="topics --help\nfly\nusers --help\n")
    assert done.exit_code == 2
    assert "Usage: ottla topics" in done.output
    assert "No such command 'fly'" in done.output
    assert "ottla users" not in done.output


PLAIN = """
broker.id=1
listeners=REPLICATION://0.0.0.0:9091,PLAIN-9092://0.0.0.0:9092
advertised.listeners=REPLICATION://demo-1.demo:9091,PLAIN-9092://demo-1.demo:9092
listener.security.protocol.map=REPLICATION:PLAINTEXT,PLAIN-9092:PLAINTEXT
inter.broker.listener.name=REPLICATION
zookeeper.connect=zookeeper:2181
"""
SECURE = (
    PLAIN.replace("REPLICATION:PLAINTEXT", "REPLICATION:SSL")
    + """
listener.name.replication.ssl.keystore.type=PEM
listener.name.replication.ssl.keystore.location={pem}
listener.name.replication.ssl.truststore.type=PEM
listener.name.replication.ssl.truststore.location={pem}
listener.name.plain-9092.ssl.keystore.location=/elsewhere
"""
)


def _session(tmp_path: Path, content: str) -> tuple[int, str, list[Session]]:
    file, found = tmp_path / "server.properties", []
    file.write_text(content)

    @click.command()
    @cluster_command
    def command(session: Session) -> None:
        found.append(session)

    done = CliRunner().invoke(command, ["--command-config", str(file)])
    return done.exit_code, done.output, found


def test_the_settings_of_a_broker_are_those_of_a_client_of_its_inter_broker_listener(tmp_path: Path) -> None:
    code, output, found = _session(tmp_path, PLAIN)
    assert code == 0, output
    assert found[0].bootstrap == [("demo-1.demo", 9091)]
    assert found[0].properties["security.protocol"] == "PLAINTEXT"


def test_a_broker_with_tls_connects_with_its_own_certificate(tmp_path: Path) -> None:
    pem = Authority().sign("demo-1").write_pem(tmp_path / "demo-1.pem")
    code, output, found = _session(tmp_path, SECURE.format(pem=pem))
    assert code == 0, output
    properties = found[0].properties
    assert properties["security.protocol"] == "SSL"
    assert properties["ssl.keystore.location"] == str(pem)
    assert properties["ssl.truststore.location"] == str(pem)


def test_wrong_settings_of_a_broker_are_reported(tmp_path: Path) -> None:
    code, output, _ = _session(tmp_path, PLAIN + "num.io.threads=many\n")
    assert code == 2
    assert "num.io.threads" in output
