"""Jobs of worker processes for tests, in a module that the processes can import."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator

from ottla.ports.files import Files


def reversed_bytes(files: Files, data: bytes, repeat: int) -> memoryview:
    assert files.exists("/")
    return memoryview(bytes(data)[::-1] * repeat)


def fail(files: Files, problem: Exception) -> None:
    raise problem


def pid(files: Files, pause_s: float = 0.0) -> int:
    time.sleep(pause_s)
    return os.getpid()


def closure(files: Files) -> Callable[[], None]:
    return lambda: None


def much_memory(files: Files) -> int:
    return len(bytes(1 << 30))


def count(files: Files, steps: int) -> Generator[int, int, int]:
    total = 0
    for step in range(steps):
        total += yield step
    return total


def pid_as_step(files: Files) -> Generator[int, object, int]:
    yield os.getpid()
    return os.getpid()


def print_something(files: Files) -> str:
    print("not a reply")
    return "reply"
