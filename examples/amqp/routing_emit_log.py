"""Routing: send a line with its severity as the routing key."""

import sys

from connecting import connect, say

connection = connect()
channel = connection.channel()
channel.exchange_declare("direct_logs", "direct")
severity = sys.argv[1] if len(sys.argv) > 1 else "info"
line = " ".join(sys.argv[2:]) or "hello"
channel.basic_publish("direct_logs", severity, line.encode())
say(f"sent {severity}: {line}")
connection.close()
