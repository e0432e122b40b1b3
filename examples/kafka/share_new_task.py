"""Work queue over a topic: send tasks, each word on the command line one."""

import os
import sys

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": os.environ.get("KAFKA_BOOTSTRAP", "127.0.0.1:9092")})
for task in sys.argv[1:]:
    producer.produce("tasks", task)
producer.flush()
print(f"sent {len(sys.argv) - 1}")
