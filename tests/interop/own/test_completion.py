"""`ottla completion` in real shells: commands, and the topics and groups of a broker."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.client.blocking import Consumer, Producer
from ottla.testing import DevBroker
from ottla_operator.kubectl.completion import lines

BASH = """
source <(ottla completion bash)
COMP_WORDS=({words}) COMP_CWORD={last}
_ottla_completion ottla
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "ottla completion fish | source; complete -C {line}"
# A pseudo terminal, in which Tab lists the candidates.
ZSH = """
zmodload zsh/zpty
zpty shell zsh -f
zpty -w shell 'PS1=; autoload -Uz compinit; compinit -u -d {dump}'
zpty -w shell 'eval "$(ottla completion zsh)"; print READY'
zpty -r shell seen '*READY*READY*'
zpty -w -n shell {line}$'\\t'
zpty -r -m shell seen {expected}
print -r -- $seen
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevBroker]:
    with DevBroker() as found:
        with Producer(bootstrap_servers=found.bootstrap) as producer:
            for topic in ("clicks", "clocks", "orders"):
                producer.send(topic, b"1").result(30)
        with Consumer(bootstrap_servers=found.bootstrap, group_id="billing") as consumer:
            consumer.assign([("orders", 0)])
            consumer.seek(("orders", 0), 1)
            consumer.commit()
        yield found


def shell(name: str, script: str, broker: DevBroker, folder: Path) -> list[str]:
    """The lines that a shell prints; `ottla` on its path is this tree's."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    command = folder / "ottla"
    command.write_text(f"#!{sys.executable}\nfrom ottla.extras import ottla\n\nottla()\n")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "OTTLA_BOOTSTRAP": broker.bootstrap,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [name, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


LINES = [
    ("ottla top", ["topics"]),
    ("ottla topics describe cl", ["clicks", "clocks"]),
    ("ottla groups describe b", ["billing"]),
    ("ottla consume clicks --grou", ["--group"]),
]


@pytest.mark.parametrize(("line", "candidates"), LINES)
def test_bash(broker: DevBroker, tmp_path: Path, line: str, candidates: list[str]) -> None:
    words = shlex.split(line)
    script = BASH.format(words=shlex.join(words), last=len(words) - 1)
    assert shell("bash", script, broker, tmp_path) == candidates


@pytest.mark.parametrize(("line", "candidates"), LINES)
def test_fish(broker: DevBroker, tmp_path: Path, line: str, candidates: list[str]) -> None:
    found = shell("fish", FISH.format(line=shlex.quote(line)), broker, tmp_path)
    assert [each.partition("\t")[0] for each in found] == candidates


def test_zsh(broker: DevBroker, tmp_path: Path) -> None:
    script = ZSH.format(dump=tmp_path / "dump", line="'ottla groups describe b'", expected="'*billing*'")
    assert "billing" in "".join(shell("zsh", script, broker, tmp_path))


def test_a_cluster_that_is_away_gives_no_names_and_no_error(broker: DevBroker, tmp_path: Path) -> None:
    script = BASH.format(words="ottla topics describe -b 127.0.0.1:1 c", last=5)
    assert shell("bash", script, broker, tmp_path) == [""]


def test_the_help_says_where_each_script_goes() -> None:
    shown = CliRunner().invoke(main, ["completion", "--help"]).output
    assert all(file in shown for file in (".bashrc", ".zshrc", ".config/fish/completions/ottla.fish"))


def test_kubectl_gets_candidates_and_a_directive() -> None:
    assert [each.partition("\t")[0] for each in lines(["stat"])] == ["status", ":4"]
    assert lines(["plan", "-f", ""]) == [":0"], "kubectl completes files"
    assert lines(["no-such-command", ""])[-1] in (":0", ":4")
