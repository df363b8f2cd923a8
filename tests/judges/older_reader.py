"""A connector in a child process, which a test can kill: `older_reader.py TOPIC STREAMS KEY=VALUE…`.

Prints `partition offset value` for each message, and `ready` when it has its partitions.
"""

from __future__ import annotations

import sys
import threading

from ottla.client.legacy import ConsumerConnector, KafkaStream, StringDecoder


def read(stream: KafkaStream) -> None:
    for each in stream:
        print(each.partition, each.offset, each.message, flush=True)


if __name__ == "__main__":
    topic, count = sys.argv[1], int(sys.argv[2])
    connector = ConsumerConnector(dict(setting.split("=", 1) for setting in sys.argv[3:]))
    streams = connector.create_message_streams({topic: count}, value_decoder=StringDecoder())[topic]
    readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in streams]
    for reader in readers:
        reader.start()
    print("ready", flush=True)
    sys.stdin.read()
    connector.shutdown()
    for reader in readers:
        reader.join()
