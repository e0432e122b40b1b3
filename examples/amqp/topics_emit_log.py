"""Topics: send a line with a dotted key, facility.severity."""

import sys

from connecting import connect, say

connection = connect()
channel = connection.channel()
channel.exchange_declare("topic_logs", "topic")
key = sys.argv[1] if len(sys.argv) > 1 else "anonymous.info"
line = " ".join(sys.argv[2:]) or "hello"
channel.basic_publish("topic_logs", key, line.encode())
say(f"sent {key}: {line}")
connection.close()
