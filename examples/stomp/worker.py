"""Work queue: do tasks, each dot being a tenth of a second of work. A task is acknowledged when it is done: if this worker dies
before, another gets it. With a prefetch of 1 nobody is given a task while another is idle."""

import time

from connecting import connect, receive, take_option

count = take_option("--count")
connection, inbox = connect()
connection.subscribe(
    "/queue/stomp-tasks", id="tasks", ack="client-individual", headers={"prefetch-count": "1", "receipt": "subscribed"}
)
inbox.receipts.get()
for task in receive(inbox, count):
    time.sleep(0.1 * task.body.count("."))
    connection.ack(task.headers["ack"])
    print(f"done {task.body}", flush=True)
connection.disconnect()
