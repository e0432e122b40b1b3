"""Publish/subscribe: announce something on a topic."""

import sys

from connecting import connect

connection, inbox = connect()
connection.send(f"/topic/{sys.argv[1]}", " ".join(sys.argv[2:]), headers={"receipt": "sent"})
inbox.receipts.get()
connection.disconnect()
