"""Hello queue: print what comes out of the queue `hello`."""

import sys

from connecting import connect, receive, say, take_count

count = take_count(sys.argv)
channel = connect().channel()
channel.queue_declare("hello")


def on_message(channel, method, properties, body):
    say(f"received {body.decode()}")
    channel.handled()


channel.basic_consume("hello", on_message, auto_ack=True)
receive(channel, count)
