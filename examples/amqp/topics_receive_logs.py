"""Topics: receive lines whose key matches one of the patterns: `*` is one word, `#` any number of words."""

import sys

from connecting import connect, receive, say, take_count

count = take_count(sys.argv)
patterns = sys.argv[1:] or ["#"]
channel = connect().channel()
channel.exchange_declare("topic_logs", "topic")
queue = channel.queue_declare("", exclusive=True).method.queue
for pattern in patterns:
    channel.queue_bind(queue, "topic_logs", pattern)


def on_line(channel, method, properties, body):
    say(f"{method.routing_key}: {body.decode()}")
    channel.handled()


channel.basic_consume(queue, on_line, auto_ack=True)
receive(channel, count)
