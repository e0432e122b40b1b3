"""Routing: receive lines of the severities given as arguments."""

import sys

from connecting import connect, receive, say, take_count

count = take_count(sys.argv)
severities = sys.argv[1:] or ["info", "warning", "error"]
channel = connect().channel()
channel.exchange_declare("direct_logs", "direct")
queue = channel.queue_declare("", exclusive=True).method.queue
for severity in severities:
    channel.queue_bind(queue, "direct_logs", severity)


def on_line(channel, method, properties, body):
    say(f"{method.routing_key}: {body.decode()}")
    channel.handled()


channel.basic_consume(queue, on_line, auto_ack=True)
receive(channel, count)
