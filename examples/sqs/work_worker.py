"""Works off the queue. A task that fails three times is put aside, into `tasks-dead`: `trunkline sqs redrive tasks-dead` brings it back."""

from __future__ import annotations

import json
import sys
from typing import Any

from connecting import client


def tasks_queue(sqs: Any) -> str:
    dead = sqs.create_queue(QueueName="tasks-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    attributes = {"VisibilityTimeout": "30", "RedrivePolicy": policy}
    return str(sqs.create_queue(QueueName="tasks", Attributes=attributes)["QueueUrl"])


def main() -> None:
    sqs = client("sqs")
    url = tasks_queue(sqs)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else None  # how many to do; all, for ever, without it
    print("ready", flush=True)
    while wanted is None or wanted > 0:
        # Waits on the broker until there is something, for at most twenty seconds.
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        for message in answer.get("Messages", []):
            if message["Body"].startswith("fail"):
                print(f"failed {message['Body']!r}", flush=True)
                # Visible again at once; without this, when the visibility timeout is over.
                sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
                continue
            print(f"done {message['Body']!r}", flush=True)
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            wanted = None if wanted is None else wanted - 1


if __name__ == "__main__":
    main()
