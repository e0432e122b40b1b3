"""Publish/subscribe: print what is announced on topics that match. With `--durable NAME` also what came while it was away."""

import sys

from connecting import connect, receive, take_option

count, name = take_option("--count"), take_option("--durable")
pattern = sys.argv[1] if len(sys.argv) > 1 else "#"
connection, inbox = connect()
durable = {} if name is None else {"durable": "true", "auto-delete": "false"}
connection.subscribe(
    f"/topic/{pattern}", id=name or "listener", ack="auto", headers={**durable, "receipt": "subscribed"}
)
inbox.receipts.get()
for message in receive(inbox, count):
    print(f"{message.headers['destination']} {message.body}", flush=True)
connection.disconnect()
