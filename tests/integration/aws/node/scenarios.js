// Node's SDK for SQS, one scenario a process: node scenarios.js SCENARIO ENDPOINT NAME
"use strict";
const assert = require("assert");
const sdk = require("@aws-sdk/client-sqs");

const [scenario, endpoint, name] = process.argv.slice(2);
const client = new sdk.SQSClient({
  endpoint,
  region: "eu-west-1",
  credentials: { accessKeyId: "any", secretAccessKey: "any" },
  maxAttempts: 1,
});
const call = (operation, input) => client.send(new sdk[`${operation}Command`](input));

const scenarios = {
  async standard() {
    const { QueueUrl } = await call("CreateQueue", { QueueName: name, Attributes: { VisibilityTimeout: "30" } });
    const MessageAttributes = {
      n: { DataType: "Number", StringValue: "7" },
      b: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
    };
    // The SDK compares the digests of what it sent and got.
    const sent = await call("SendMessage", { QueueUrl, MessageBody: "grüße", MessageAttributes });
    const got = await call("ReceiveMessage", {
      QueueUrl, WaitTimeSeconds: 5, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"],
    });
    assert.strictEqual(got.Messages[0].Body, "grüße");
    assert.strictEqual(got.Messages[0].MessageId, sent.MessageId);
    assert.strictEqual(got.Messages[0].MessageAttributes.n.StringValue, "7");
    assert.deepStrictEqual([...got.Messages[0].MessageAttributes.b.BinaryValue], [0, 255]);
    const { ReceiptHandle } = got.Messages[0];
    await call("ChangeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 60 });
    await call("DeleteMessage", { QueueUrl, ReceiptHandle });
    const { Attributes } = await call("GetQueueAttributes", { QueueUrl, AttributeNames: ["All"] });
    assert.strictEqual(Attributes.ApproximateNumberOfMessagesNotVisible, "0");
    await call("DeleteQueue", { QueueUrl });
  },
  async batches() {
    const { QueueUrl } = await call("CreateQueue", { QueueName: name });
    const Entries = [...Array(10).keys()].map((n) => ({ Id: `${n}`, MessageBody: `m${n}` }));
    const sent = await call("SendMessageBatch", { QueueUrl, Entries });
    assert.strictEqual(sent.Successful.length, 10);
    const found = [];
    while (found.length < 10) {
      const got = await call("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5 });
      const messages = got.Messages || [];
      found.push(...messages.map((message) => message.Body));
      await call("DeleteMessageBatch", {
        QueueUrl, Entries: messages.map((each, n) => ({ Id: `${n}`, ReceiptHandle: each.ReceiptHandle })),
      });
    }
    assert.deepStrictEqual(found.sort(), Entries.map((entry) => entry.MessageBody).sort());
    await call("DeleteQueue", { QueueUrl });
  },
  async fifo() {
    const { QueueUrl } = await call("CreateQueue", {
      QueueName: `${name}.fifo`, Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" },
    });
    for (const body of ["1", "2", "2", "3"]) {
      await call("SendMessage", { QueueUrl, MessageBody: body, MessageGroupId: "g" });
    }
    const got = await call("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5 });
    assert.deepStrictEqual(got.Messages.map((message) => message.Body), ["1", "2", "3"]);
    await call("DeleteQueue", { QueueUrl });
  },
  async errors() {
    await assert.rejects(call("GetQueueUrl", { QueueName: name }), (error) => {
      assert(error instanceof sdk.QueueDoesNotExist, error.name);
      assert.strictEqual(error.$metadata.httpStatusCode, 400);
      return true;
    });
    const { QueueUrl } = await call("CreateQueue", { QueueName: name });
    await assert.rejects(call("DeleteMessage", { QueueUrl, ReceiptHandle: "forged" }), (error) => {
      assert(error instanceof sdk.ReceiptHandleIsInvalid, error.name);
      return true;
    });
    await call("DeleteQueue", { QueueUrl });
  },
};

scenarios[scenario]().then(
  () => process.exit(0),
  (error) => { console.error(error); process.exit(1); },
);
