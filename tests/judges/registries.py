"""Schema registries as processes on a broker: `with Registry(bootstrap, directory) as registry`."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc_tools
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

from ottla.local.processes import ChildProcess, free_port, wait_until
from ottla_pipeline.registry.access import hashed

START_S: Final = 120.0
_RUN: Final = "from ottla_pipeline.registry.command import main; main()"

RULES = [
    {"user": "writer", "allow": "write", "subjects": ["flights-*", "shared"]},
    {"user": "reader", "allow": "read", "subjects": ["flights-*"]},
    {"user": "admin", "allow": "write", "subjects": ["*"]},
]


def rules_file(directory: Path) -> Path:
    """A file for --access: RULES, and passwords like writer-secret."""
    path = directory / "access.yaml"
    users = {name: hashed(f"{name}-secret") for name in ("writer", "reader", "admin")}
    path.write_text(yaml.safe_dump({"users": users, "rules": RULES}))
    return path


def message_class(directory: Path, sources: Mapping[str, str], name: str) -> Any:
    """The class of a Protobuf message, by its files' names and texts, the one that has it last."""
    for path, text in sources.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(text)
    built_in, out = Path(grpc_tools.__file__).parent / "_proto", directory / "set"
    command = [
        "protoc",
        f"-I{directory}",
        f"-I{built_in}",
        "--include_imports",
        f"--descriptor_set_out={out}",
    ]
    assert protoc.main([*command, list(sources)[-1]]) == 0
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class Registry:
    """A registry process. `tls`: files for --tls-certificate: the authority that signed it, and a client's
    key and certificate, which `ask` uses."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        topic: str = "_schemas",
        *options: str,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{free_port()}"
        self._trust = None
        if tls:
            self._trust = ssl.create_default_context(cafile=str(tls[0]))
            self._trust.load_cert_chain(tls[1])
        self.log = directory / f"registry-{self.url.rpartition(':')[2]}.log"
        self._command = [sys.executable, "-c", _RUN, "--bootstrap", bootstrap, "--topic", topic]
        self._command += ["--port", self.url.rpartition(":")[2], *options]
        self._process = ChildProcess("registry", self._command, log=self.log)
        self._clients = ExitStack()

    def __enter__(self) -> Registry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            assert self.stop(), f"it must go on SIGTERM by itself: {self.log.read_text()}"
            assert "Traceback" not in self.log.read_text(), self.log.read_text()
        finally:
            self.kill()
            self._clients.close()

    def launch(self) -> None:
        """Starts the process without waiting for it."""
        self._process.start()

    def start(self) -> None:
        self.launch()
        assert wait_until(lambda: self._healthy() or not self._process.running, timeout_s=START_S)
        assert self._process.running, self.log.read_text()

    def stop(self) -> bool:
        return self._process.stop(timeout_s=30)

    def kill(self) -> None:
        self._process.kill()

    def client(self, **more: str) -> SchemaRegistryClient:
        """It is closed with the registry. `_` in the names of settings is `.`."""
        settings = {"url": self.url, "max.retries": 0}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        return self._clients.enter_context(SchemaRegistryClient(settings))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """HTTP's status and the body; text where it is not JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._trust) as response:
                return response.status, _loaded(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _loaded(error.read())

    def code(self, method: str, path: str, body: Any = None) -> int:
        """The error code of a response."""
        _, answer = self.ask(method, path, body)
        assert isinstance(answer, Mapping), answer
        return int(answer["error_code"])

    def _healthy(self) -> bool:
        try:
            return self.ask("GET", "/healthz")[0] == 200
        except OSError:
            return False


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()
