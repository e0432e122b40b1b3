"""Work queue: hand out tasks. The receipt of each says that it is on disk."""

import sys

from connecting import connect

connection, inbox = connect()
for number, task in enumerate(sys.argv[1:]):
    connection.send("/queue/stomp-tasks", task, headers={"persistent": "true", "receipt": str(number)})
for _ in sys.argv[1:]:
    inbox.receipts.get()
print(f"{len(sys.argv) - 1} stored", flush=True)
connection.disconnect()
