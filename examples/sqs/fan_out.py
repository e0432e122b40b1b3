"""An SNS topic with two queues: one gets everything, the other only alerts."""

from __future__ import annotations

import json

from connecting import client

sqs, sns = client("sqs"), client("sns")
topic = sns.create_topic(Name="news")["TopicArn"]
urls = {}
for name, policy in (("news-all", None), ("news-alerts", {"kind": ["alert"]})):
    urls[name] = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=urls[name], AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    attributes = {"RawMessageDelivery": "true"}
    if policy is not None:
        attributes["FilterPolicy"] = json.dumps(policy)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)
for kind, text in (("weather", "rain"), ("alert", "flood")):
    sns.publish(TopicArn=topic, Message=text, MessageAttributes={"kind": {"DataType": "String", "StringValue": kind}})
for name, url in urls.items():
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
    print(name, sorted(message["Body"] for message in answer["Messages"]))
    sqs.delete_queue(QueueUrl=url)
sns.delete_topic(TopicArn=topic)
