"""`python -m bench.hostile`: latencies of a producer while other clients attack the broker.

Ottla and Apache Kafka run one broker each, in turns, on core 0 with all their threads and processes; all
clients run on core 1, the attackers at a higher niceness. For each attack, in one run on the same broker, the
producer sends a record every few milliseconds, alone and then beside the attack. The latencies of the two
parts are compared; the aim is a p99 of at most twice that of the first part.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import click
from rich.console import Console
from rich.table import Table

from bench.compaction import PACED_TOPIC, send_paced
from bench.connection import RequestConnection, decode_response, error_codes
from bench.interpreter import say_interpreter
from bench.processes import touch_free_pages
from bench.sides import Side, chosen_sides, only_option
from bench.tools import CLIENT_CORE
from bench.traffic import percentile
from ottla.protocol import frames
from ottla.protocol.compression import Codec, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.messages import MetadataRequest, ProduceRequest
from ottla.protocol.records import Record

BOMBED = "bench-bombed"
BOMB_MESSAGES = 200_000
BOMB_VERSION = 2
NICENESS = 10
_NOW_MS = 1_700_000_000_000


class Round(NamedTuple):
    """One attack on one side; latencies in ms."""

    alone_ms: list[float]
    attacked_ms: list[float]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def bombs(port: int) -> None:
    """Four connections that send old-format batches of 200,000 messages in a few kilobytes."""
    one = encode_message_set([Record(0, _NOW_MS, b"k", b"v")], 1)
    wrapper = encode_message_set([Record(0, _NOW_MS, None, compress(Codec.GZIP, one * BOMB_MESSAGES))], 1)
    records = bytearray(wrapper)
    records[17] = Codec.GZIP
    records[12:16] = crc32(bytes(records[16:])).to_bytes(4, "big")
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(records))
    topic = ProduceRequest.TopicProduceData(name=BOMBED, partition_data=[data])
    bomb = frames.encode_request(
        ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[topic]), BOMB_VERSION, 1, "bomber"
    )
    sockets = [connect(port) for _ in range(4)]
    for sock in sockets:
        sock.sendall(bomb)
    while True:
        for sock in sockets:
            size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
            check_produced(sock.recv(size, socket.MSG_WAITALL))
            sock.sendall(bomb)


def check_produced(frame: bytes) -> None:
    """Raises ClickException for an error code: a broker that refuses the batch is not under attack."""
    response = decode_response(ProduceRequest.api_key, BOMB_VERSION, frame)
    for code in filter(None, error_codes(response)):
        raise click.ClickException(f"the broker refused the attack with {ErrorCode.of(code).name}")


def slow_senders(port: int) -> None:
    """500 connections that send a request of 1 MiB byte by byte, 2,000 bytes a second in all."""
    sockets = [connect(port) for _ in range(500)]
    for sock in sockets:
        sock.sendall((1 << 20).to_bytes(4, "big"))
    while True:
        for sock in sockets:
            sock.sendall(b"\0")
            time.sleep(1 / 2000)


def half_open(port: int) -> None:
    """100 new connections a second that send nothing; 1,000 stay open."""
    open_sockets: list[socket.socket] = []
    while True:
        open_sockets.append(connect(port))
        if len(open_sockets) > 1000:
            open_sockets.pop(0).close()
        time.sleep(1 / 100)


def random_lengths(port: int) -> None:
    """200 connections a second that send a random length and up to 200 random bytes."""
    rng = random.Random(1)
    while True:
        with suppress(OSError), connect(port) as sock:
            sock.sendall(rng.randbytes(4) + rng.randbytes(rng.randrange(200)))
        time.sleep(1 / 200)


def damaged_requests(port: int) -> None:
    """200 Metadata requests a second with three random bytes changed."""
    rng = random.Random(2)
    topics = [MetadataRequest.MetadataRequestTopic(name="t") for _ in range(20)]
    whole = frames.encode_request(MetadataRequest(topics=topics), 9, 1, "fuzzer")
    while True:
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        with suppress(OSError), connect(port) as sock:
            sock.sendall(data)
            sock.recv(1)
        time.sleep(1 / 200)


ATTACKS: dict[str, Callable[[int], None]] = {
    "bombs": bombs,
    "slow senders": slow_senders,
    "half-open connections": half_open,
    "lying lengths": random_lengths,
    "damaged requests": damaged_requests,
}


def _run_attack(attack: Callable[[int], None], port: int) -> None:
    os.sched_setaffinity(0, {CLIENT_CORE})
    os.nice(NICENESS)
    attack(port)


@contextmanager
def under_attack(attack: Callable[[int], None], port: int) -> Iterator[None]:
    process = multiprocessing.Process(target=_run_attack, args=(attack, port), daemon=True)
    process.start()
    try:
        yield
        if not process.is_alive():
            raise click.ClickException("the attacking process ended")
    finally:
        process.kill()
        process.join()


def run(side: Side, attack: Callable[[int], None], rate: float, seconds: float) -> Round:
    side.create_topic(PACED_TOPIC)
    side.create_topic(BOMBED)
    touch_free_pages()
    connection = RequestConnection(side.leader_port(PACED_TOPIC))
    try:
        send_paced(connection, rate, lambda since_s: since_s > 2)
        alone = send_paced(connection, rate, lambda since_s: since_s > seconds)
        with under_attack(attack, side.leader_port(BOMBED)):
            send_paced(connection, rate, lambda since_s: since_s > 2)
            attacked = send_paced(connection, rate, lambda since_s: since_s > seconds)
    finally:
        connection.close()
    side.delete_topic(PACED_TOPIC)
    side.delete_topic(BOMBED)
    return Round(alone, attacked)


def results_table(rounds_by_attack: dict[tuple[str, str], list[Round]]) -> Table:
    table = Table(title="Produce beside an attack, medians of the rounds")
    names = ("attack", "side", "p50 alone", "p50 attacked", "p99 alone", "p99 attacked", "p99 ratio")
    for name in names:
        table.add_column(name, justify="left" if name in ("attack", "side") else "right")
    for (attack, side), rounds in rounds_by_attack.items():

        def median(of: Callable[[Round], float], rounds: list[Round] = rounds) -> float:
            return statistics.median(of(each) for each in rounds)

        table.add_row(
            attack,
            side,
            f"{median(lambda r: percentile(r.alone_ms, 0.5)):.2f} ms",
            f"{median(lambda r: percentile(r.attacked_ms, 0.5)):.2f} ms",
            f"{median(lambda r: percentile(r.alone_ms, 0.99)):.2f} ms",
            f"{median(lambda r: percentile(r.attacked_ms, 0.99)):.2f} ms",
            f"{median(lambda r: percentile(r.attacked_ms, 0.99) / percentile(r.alone_ms, 0.99)):.2f}",
        )
    return table


@click.command()
@click.argument("attacks", nargs=-1)
@click.option("--rate", default=200.0, show_default=True, help="Records a second of the producer.")
@click.option("--seconds", default=10.0, show_default=True, help="Length of each measured part.")
@click.option("--rounds", default=3, show_default=True)
@only_option
def main(attacks: tuple[str, ...], rate: float, seconds: float, rounds: int, only: str | None) -> None:
    """Latencies of a producer alone, and beside ATTACKS (all, or those whose name has one of these words)."""
    say_interpreter()
    os.sched_setaffinity(0, {CLIENT_CORE})
    chosen = {n: a for n, a in ATTACKS.items() if not attacks or any(word in n for word in attacks)}
    rounds_by_attack: dict[tuple[str, str], list[Round]] = {}
    # SIGTERM ends the run like an error: brokers stop, finished results are shown.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as stack:
        stack.callback(lambda: Console(width=132).print(results_table(rounds_by_attack)))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        sides: list[Side] = [stack.enter_context(kind(root / kind.name, 1)) for kind in chosen_sides(only)]
        for name, attack in chosen.items():
            for _ in range(rounds):
                for side in sides:
                    taken = run(side, attack, rate, seconds)
                    rounds_by_attack.setdefault((name, side.name), []).append(taken)


if __name__ == "__main__":
    main()
