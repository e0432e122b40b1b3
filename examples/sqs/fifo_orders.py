"""A FIFO queue: the orders of a customer come in order, and one that is sent twice comes once."""

from __future__ import annotations

from connecting import client

sqs = client("sqs")
attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
url = sqs.create_queue(QueueName="orders.fifo", Attributes=attributes)["QueueUrl"]
for customer, order in [("ann", "1"), ("bob", "1"), ("ann", "2"), ("ann", "2"), ("bob", "2")]:
    sqs.send_message(QueueUrl=url, MessageBody=f"{customer} {order}", MessageGroupId=customer)
seen = 0
while seen < 4:
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
    for message in answer.get("Messages", []):
        print(message["Body"])
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        seen += 1
sqs.delete_queue(QueueUrl=url)
