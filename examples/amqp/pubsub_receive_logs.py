"""Publish/subscribe: a queue of one's own, bound to the exchange, gone with the connection."""

import sys

from connecting import connect, receive, say, take_count

count = take_count(sys.argv)
channel = connect().channel()
channel.exchange_declare("logs", "fanout")
queue = channel.queue_declare("", exclusive=True).method.queue
channel.queue_bind(queue, "logs")


def on_line(channel, method, properties, body):
    say(f"received {body.decode()}")
    channel.handled()


channel.basic_consume(queue, on_line, auto_ack=True)
receive(channel, count)
