"""Work queue: do tasks, each dot being a tenth of a second of work. A task is acknowledged when it is done: if this worker
dies before, another gets it. With a prefetch of 1 nobody is given a task while another is idle."""

import sys
import time

from connecting import connect, receive, say, take_count

count = take_count(sys.argv)
channel = connect().channel()
channel.queue_declare("tasks", durable=True)
channel.basic_qos(prefetch_count=1)


def on_task(channel, method, properties, body):
    time.sleep(0.1 * body.count(b"."))
    channel.basic_ack(method.delivery_tag)
    say(f"done {body.decode()}")
    channel.handled()


channel.basic_consume("tasks", on_task)
receive(channel, count)
