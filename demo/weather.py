"""Produces departures and hourly weather of New York's airports in 2013, for the samples of the windows job.

    python -m demo.weather HOST:PORT [LIMIT]

It creates the topics `flights.ewr`, `flights.jfk`, `flights.lga` and `weather` if they are missing, and sends
the first LIMIT departures (default: all) and the weather until the last of them, in the order of time.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from demo import events

TOPIC = "weather"
NUMBERS = ("temp", "humid", "wind_speed", "precip", "visib")


def readings() -> Iterator[events.Event]:
    """Each hour's weather at each airport, in the order of time."""
    path = events.data_file().with_name("weather.csv")
    with path.open(newline="") as raw:
        rows = sorted(csv.DictReader(raw), key=lambda row: (row["time_hour"], row["origin"]))
    for row in rows:
        body: dict[str, str | float | None] = {"origin": row["origin"], "time": row["time_hour"]}
        body |= {name: float(row[name]) if events.present(row[name]) else None for name in NUMBERS}
        value = json.dumps(body, separators=(",", ":")).encode()
        identity = f"{row['time_hour']}-{row['origin']}"
        yield events.Event(identity, row["time_hour"], TOPIC, row["origin"].encode(), value)


def send(bootstrap: str, limit: int | None = None) -> tuple[int, int]:
    """Send both; (number of departures, number of weather records). Raises KafkaException."""
    departures = events.load(limit=limit)
    hours = [event for event in readings() if event.time <= departures[-1].time]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(t, 3) for t in (*events.topics("flights"), TOPIC)]).values():
        try:
            future.result(60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for event in (*departures, *hours):
        while True:
            try:
                producer.produce(event.topic, event.value, event.key)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
    return len(departures), len(hours)


def main() -> None:
    bootstrap, *rest = sys.argv[1:]
    departures, hours = send(bootstrap, int(rest[0]) if rest else None)
    print(f"{departures:,} departures and {hours:,} hours of weather are in the topics")


if __name__ == "__main__":
    main()
