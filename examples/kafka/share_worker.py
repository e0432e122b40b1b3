"""Work queue over a topic: do tasks, each dot being a tenth of a second of work. A task is accepted when it is done. One that
fails is released, and somebody tries again; one that will never work is rejected. If this worker dies, others get its tasks."""

import os
import sys
import time

from confluent_kafka import AcknowledgeType, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "127.0.0.1:9092")
left = int(sys.argv[sys.argv.index("--count") + 1]) if "--count" in sys.argv else -1

admin = AdminClient({"bootstrap.servers": bootstrap})
if "tasks" not in admin.list_topics(timeout=10).topics:
    admin.create_topics([NewTopic("tasks", 2, 1)])
# A new group begins at the end of the topic unless it is told otherwise.
earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
settings = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[earliest])
admin.incremental_alter_configs([settings])[settings].result()

worker = ShareConsumer(
    {"bootstrap.servers": bootstrap, "group.id": "workers", "share.acknowledgement.mode": "explicit"}
)
worker.subscribe(["tasks"])
print("ready", flush=True)
while left:
    for task in worker.poll(1.0):
        text = task.value().decode()
        time.sleep(0.1 * text.count("."))
        if "hopeless" in text:
            worker.acknowledge(task, AcknowledgeType.REJECT)
            print(f"set aside {text}", flush=True)
            left -= 1
        elif "fail once" in text and task.delivery_count() == 1:
            worker.acknowledge(task, AcknowledgeType.RELEASE)
            print(f"failed {text}", flush=True)
        else:
            worker.acknowledge(task, AcknowledgeType.ACCEPT)
            print(f"done {text}", flush=True)
            left -= 1
    worker.commit_sync()
worker.close()
