"""Request and reply: ask for a Fibonacci number, and wait for the reply that carries the request's correlation id.

Replies come by direct reply-to, which needs no queue; a queue of one's own, declared with `exclusive=True`, would do too.
"""

import sys
import uuid

import pika
from connecting import connect, say

REPLIES = "amq.rabbitmq.reply-to"


class FibonacciClient:
    def __init__(self):
        self.connection = connect()
        self.channel = self.connection.channel()
        self.channel.queue_declare("rpc_queue")
        self.channel.basic_consume(REPLIES, self.on_reply, auto_ack=True)
        self.correlation_id = ""
        self.answer = None

    def on_reply(self, channel, method, properties, body):
        if properties.correlation_id == self.correlation_id:
            self.answer = int(body)

    def call(self, n):
        self.answer = None
        self.correlation_id = str(uuid.uuid4())
        properties = pika.BasicProperties(reply_to=REPLIES, correlation_id=self.correlation_id)
        self.channel.basic_publish("", "rpc_queue", str(n).encode(), properties)
        while self.answer is None:
            self.connection.process_data_events(time_limit=None)
        return self.answer


client = FibonacciClient()
number = int(sys.argv[1]) if len(sys.argv) > 1 else 30
say(f"fibonacci({number}) = {client.call(number)}")
client.connection.close()
