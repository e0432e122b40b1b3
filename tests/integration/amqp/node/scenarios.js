// Scenarios for Node's amqplib. `node scenarios.js URL NAME` runs one and exits with 0, or says what went wrong and exits with 1.
"use strict";

const assert = require("node:assert/strict");
const crypto = require("node:crypto");
const amqp = require("amqplib");

const DEADLINE_MS = 30000;
const unique = (prefix) => `${prefix}-${crypto.randomBytes(6).toString("hex")}`;

/** Collect messages from a queue until there are `count`. */
function collect(channel, queue, count, options = {}) {
  return new Promise((resolve, reject) => {
    const messages = [];
    channel
      .consume(
        queue,
        (message) => {
          if (message === null) return reject(new Error("the consumer was cancelled"));
          messages.push(message);
          if (!options.noAck) channel.ack(message);
          if (messages.length === count) resolve(messages);
        },
        options,
      )
      .catch(reject);
  });
}

const scenarios = {
  async confirms(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    for (let number = 0; number < 200; number++) {
      channel.sendToQueue(queue, Buffer.from(String(number)), { persistent: true });
    }
    await channel.waitForConfirms();
    const messages = await collect(channel, queue, 200);
    assert.deepEqual(messages.map((m) => Number(m.content.toString())), [...Array(200).keys()]);
  },

  async properties(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const options = {
      contentType: "application/json",
      contentEncoding: "utf-8",
      headers: { text: "grüße", number: 7, half: 0.5, yes: true, none: null, list: [1, "two"], table: { deep: 1 } },
      deliveryMode: 2,
      priority: 3,
      correlationId: "c",
      replyTo: "r",
      expiration: "60000",
      messageId: "m",
      timestamp: 1700000000,
      type: "t",
      appId: "a",
    };
    channel.publish("", queue, Buffer.from("{}"), options);
    const [message] = await collect(channel, queue, 1);
    for (const [name, value] of Object.entries(options)) assert.deepEqual(message.properties[name], value, name);
  },

  async topics(connection) {
    const channel = await connection.createChannel();
    const exchange = unique("topic");
    await channel.assertExchange(exchange, "topic", { durable: false, autoDelete: true });
    const { queue } = await channel.assertQueue("", { exclusive: true });
    await channel.bindQueue(queue, exchange, "*.error");
    await channel.bindQueue(queue, exchange, "disk.#");
    for (const key of ["net.error", "disk", "disk.full.now", "net.info", "disk.error"]) {
      channel.publish(exchange, key, Buffer.from(key));
    }
    const messages = await collect(channel, queue, 4);
    assert.deepEqual(
      messages.map((m) => m.fields.routingKey),
      ["net.error", "disk", "disk.full.now", "disk.error"],
    );
  },

  async redelivery(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    channel.sendToQueue(queue, Buffer.from("x"));
    const seen = await new Promise((resolve, reject) => {
      const flags = [];
      channel
        .consume(queue, (message) => {
          flags.push(message.fields.redelivered);
          if (flags.length < 3) channel.nack(message, false, true);
          else {
            channel.ack(message);
            resolve(flags);
          }
        })
        .catch(reject);
    });
    assert.deepEqual(seen, [false, true, true]);
  },

  async prefetch(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    await channel.prefetch(2);
    for (let number = 0; number < 10; number++) channel.sendToQueue(queue, Buffer.from(String(number)));
    let unacked = 0;
    let most = 0;
    await new Promise((resolve, reject) => {
      let done = 0;
      channel
        .consume(queue, (message) => {
          unacked += 1;
          most = Math.max(most, unacked);
          setTimeout(() => {
            unacked -= 1;
            channel.ack(message);
            done += 1;
            if (done === 10) resolve();
          }, 5);
        })
        .catch(reject);
    });
    assert.equal(most, 2);
  },

  async rpc(connection) {
    const server = await connection.createChannel();
    const client = await connection.createChannel();
    const { queue } = await server.assertQueue("", { exclusive: true });
    await server.consume(queue, (message) => {
      const { replyTo, correlationId } = message.properties;
      server.sendToQueue(replyTo, Buffer.from(String(Number(message.content) * 2)), { correlationId });
      server.ack(message);
    });
    const pseudo = "amq.rabbitmq.reply-to";
    const replies = collect(client, pseudo, 20, { noAck: true });
    for (let number = 0; number < 20; number++) {
      client.sendToQueue(queue, Buffer.from(String(number)), { replyTo: pseudo, correlationId: String(number) });
    }
    for (const reply of await replies) {
      assert.equal(Number(reply.content), 2 * Number(reply.properties.correlationId));
    }
  },

  async returns(connection) {
    const channel = await connection.createConfirmChannel();
    const returned = new Promise((resolve) => channel.on("return", resolve));
    channel.publish("", unique("nobody"), Buffer.from("back"), { mandatory: true });
    await channel.waitForConfirms();
    const message = await returned;
    assert.equal(message.fields.replyCode, 312);
    assert.equal(message.content.toString(), "back");
  },

  async errors(connection) {
    const channel = await connection.createChannel();
    const closed = new Promise((resolve) => channel.on("error", resolve));
    await assert.rejects(channel.checkQueue(unique("missing")), /NOT_FOUND/);
    assert.equal((await closed).code, 404);
    const other = await connection.createChannel();
    await other.assertQueue("", { exclusive: true });
  },

  async cancellation(connection) {
    const channel = await connection.createChannel();
    const queue = unique("queue");
    await channel.assertQueue(queue, { durable: false });
    const cancelled = new Promise((resolve) => {
      channel.consume(queue, (message) => message === null && resolve());
    });
    const other = await connection.createChannel();
    await other.deleteQueue(queue);
    await cancelled;
  },

  async large(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const body = crypto.randomBytes(3000000);
    channel.sendToQueue(queue, body);
    await channel.waitForConfirms();
    const [message] = await collect(channel, queue, 1);
    assert.ok(message.content.equals(body));
  },
};

async function main() {
  const [url, name] = process.argv.slice(2);
  if (url === "--list") {
    console.log(Object.keys(scenarios).join("\n"));
    return;
  }
  const connection = await amqp.connect(url);
  connection.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
  await scenarios[name](connection);
  await connection.close();
}

const timer = setTimeout(() => {
  console.error(`not done after ${DEADLINE_MS} ms`);
  process.exit(1);
}, DEADLINE_MS);
main().then(
  () => clearTimeout(timer),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
