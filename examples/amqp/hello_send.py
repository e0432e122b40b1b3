"""Hello queue: put one message into the queue `hello`."""

import sys

from connecting import connect, say

connection = connect()
channel = connection.channel()
channel.queue_declare("hello")
body = " ".join(sys.argv[1:]) or "Hello, world"
channel.basic_publish(exchange="", routing_key="hello", body=body.encode())
say(f"sent {body}")
connection.close()
