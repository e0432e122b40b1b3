"""Puts tasks into the queue: `python work_new_task.py "resize 7.png" "fail: no such file"`."""

from __future__ import annotations

import sys

from connecting import client
from work_worker import tasks_queue

sqs = client("sqs")
url = tasks_queue(sqs)
for text in sys.argv[1:] or ["a task"]:
    sqs.send_message(QueueUrl=url, MessageBody=text)
    print(f"sent {text!r}")
