"""The program of a worker process, and the messages on its standard input and output.

`python -m ottla.ports.worker_process PARENT NICENESS MEMORY_BYTES_MAX`, started by `workers`. It receives a
job (function, arguments) and sends its result or exception. If the function is a generator function, it sends
each step before that and receives (whether to go on, the answer). It ends with its input, and with PARENT,
however that ends: it must not write to files that another broker opens. It may be killed at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Generator
from io import BytesIO
from struct import Struct
from typing import IO, Any, Final, TypeAlias

from ottla.ports.files import OsFiles

Message: TypeAlias = tuple[Any, Any]

_HEAD: Final = Struct(">II")
"""The size of the pickled message and the number of its buffers."""
_SIZE: Final = Struct(">Q")
"""The size of each buffer. The pickled message and the buffers follow."""
RESULT: Final = "result"
EXCEPTION: Final = "exception"
STEP: Final = "step"
"""What a message of the process has."""

_PR_SET_PDEATHSIG: Final = 1


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, memoryview):
            return bytes, (pickle.PickleBuffer(obj),)
        return NotImplemented


def send(file: IO[bytes], message: Message) -> None:
    """Raises OSError, and what pickle raises."""
    data = BytesIO()
    buffers: list[memoryview] = []
    _Pickler(data, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw())).dump(message)
    pickled = data.getbuffer()
    sizes = b"".join(_SIZE.pack(len(buffer)) for buffer in buffers)
    file.write(_HEAD.pack(len(pickled), len(buffers)) + sizes + pickled)
    for buffer in buffers:
        file.write(buffer)
    file.flush()


def receive(file: IO[bytes]) -> Message | None:
    """None at the end of the file. A sender that dies may leave an incomplete message, which is ignored."""
    try:
        size, count = _HEAD.unpack(_read(file, _HEAD.size))
        sizes = [_SIZE.unpack(_read(file, _SIZE.size))[0] for _ in range(count)]
        pickled = _read(file, size)
        buffers = [_read(file, each) for each in sizes]
    except EOFError:
        return None
    message: Message = pickle.loads(pickled, buffers=buffers)
    return message


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve(jobs: IO[bytes], replies: IO[bytes]) -> None:
    """Run jobs until the input ends."""
    files = OsFiles()
    while (message := receive(jobs)) is not None:
        job, args = message
        del message
        reply = _run(job, (files, *args), jobs, replies)
        del args
        try:
            send(replies, reply)
        except (pickle.PicklingError, TypeError, AttributeError) as problem:
            send(replies, (EXCEPTION, RuntimeError(f"{reply[1]!r}: {problem}")))


def _run(job: Callable[..., Any], args: tuple[Any, ...], jobs: IO[bytes], replies: IO[bytes]) -> Message:
    try:
        result = job(*args)
        if isinstance(result, Generator):
            result = _run_steps(result, jobs, replies)
    except Exception as e:
        return EXCEPTION, e.with_traceback(None)  # a traceback would keep the job's memory
    return RESULT, result


def _run_steps(steps: Generator[Any, Any, Any], jobs: IO[bytes], replies: IO[bytes]) -> Any:
    reply = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value
        send(replies, (STEP, step))
        message = receive(jobs)
        if message is None:
            raise SystemExit
        goes_on, reply = message
        if not goes_on:
            steps.close()
            return None


def _die_with_parent(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main(parent: int, niceness: int, memory_bytes_max: int) -> None:
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this process in order
    with contextlib.suppress(OSError):
        os.nice(niceness)
    if memory_bytes_max:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of print() must not be taken for a reply
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, output)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
