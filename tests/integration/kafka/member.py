"""One group member as a program: subscribes, polls for ever, and prints its assignment as JSON whenever it changes."""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer


def main() -> None:
    given = json.loads(sys.argv[1])
    consumer = Consumer(given["configuration"])
    consumer.subscribe(given["topics"])
    last: list[list[object]] | None = None
    while True:
        consumer.poll(0.05)
        now = sorted([each.topic, each.partition] for each in consumer.assignment())
        if now != last:
            print(json.dumps(now), flush=True)
            last = now


if __name__ == "__main__":
    main()
