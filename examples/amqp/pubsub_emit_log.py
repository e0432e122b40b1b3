"""Publish/subscribe: send a line to everyone who listens now."""

import sys

from connecting import connect, say

connection = connect()
channel = connection.channel()
channel.exchange_declare("logs", "fanout")
line = " ".join(sys.argv[1:]) or "info: hello"
channel.basic_publish("logs", "", line.encode())
say(f"sent {line}")
connection.close()
