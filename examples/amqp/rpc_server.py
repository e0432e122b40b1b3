"""Request and reply: a server that computes Fibonacci numbers."""

import sys

import pika
from connecting import connect, receive, say, take_count


def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


count = take_count(sys.argv)
channel = connect().channel()
channel.queue_declare("rpc_queue")
channel.basic_qos(prefetch_count=1)


def on_request(channel, method, properties, body):
    answer = str(fibonacci(int(body)))
    reply = pika.BasicProperties(correlation_id=properties.correlation_id)
    channel.basic_publish("", properties.reply_to, answer.encode(), reply)
    channel.basic_ack(method.delivery_tag)
    say(f"fibonacci({body.decode()}) = {answer}")
    channel.handled()


channel.basic_consume("rpc_queue", on_request)
receive(channel, count)
