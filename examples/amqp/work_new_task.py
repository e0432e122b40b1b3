"""Work queue: hand out a task. It is persistent and confirmed: once this says so, the task survives the broker's death."""

import sys

import pika
from connecting import connect, say

connection = connect()
channel = connection.channel()
channel.queue_declare("tasks", durable=True)
channel.confirm_delivery()
task = " ".join(sys.argv[1:]) or "a task..."
channel.basic_publish("", "tasks", task.encode(), pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent))
say(f"handed out {task}")
connection.close()
