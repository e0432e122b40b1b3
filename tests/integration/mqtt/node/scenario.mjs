// Runs one scenario with MQTT.js and prints what it saw as JSON. Arguments: library path, URL, protocol version, topic.
import { createRequire } from "node:module";

const [library, url, version, topic] = process.argv.slice(2);
const mqtt = createRequire(library + "/")("mqtt");
const protocolVersion = Number(version);
const unique = Math.random().toString(16).slice(2);

async function connect(name, options = {}) {
  const client = await mqtt.connectAsync(url, {
    protocolVersion, clientId: `${name}-${unique}`, reconnectPeriod: 0, ...options,
  });
  // A broker may close as soon as it has read DISCONNECT; that is not an error of the scenario.
  client.on("error", () => {});
  client.stream.on("error", () => {});
  return client;
}

function inbox(client) {
  const waiting = [];
  const messages = [];
  client.on("message", (name, payload, packet) => {
    const message = {
      topic: name, payload: payload.toString(), qos: packet.qos, retain: packet.retain, properties: packet.properties ?? {},
    };
    const next = waiting.shift();
    if (next) next(message);
    else messages.push(message);
  });
  return () => (messages.length ? Promise.resolve(messages.shift()) : new Promise((resolve) => waiting.push(resolve)));
}

const seen = {};
const subscriber = await connect("subscriber");
const take = inbox(subscriber);
const granted = await subscriber.subscribeAsync({ [`${topic}/#`]: { qos: 2 } });
seen.granted = granted.map((each) => each.qos);
const publisher = await connect("publisher");

seen.order = [];
for (const qos of [0, 1, 2]) {
  for (let number = 0; number < 10; number++) await publisher.publishAsync(`${topic}/${qos}`, String(number), { qos });
  for (let number = 0; number < 10; number++) {
    const message = await take();
    seen.order.push([message.topic, message.payload, message.qos]);
  }
}

if (protocolVersion === 5) {
  await publisher.publishAsync(`${topic}/p`, "text", {
    qos: 1,
    properties: { contentType: "text/plain", responseTopic: "r", correlationData: Buffer.from([1, 2]), userProperties: { a: ["1", "2"] } },
  });
  const { properties } = await take();
  seen.properties = {
    contentType: properties.contentType, responseTopic: properties.responseTopic,
    correlationData: [...properties.correlationData], userProperties: properties.userProperties,
  };
}

await publisher.publishAsync(`${topic}/kept`, "kept", { qos: 1, retain: true });
await take();
const late = await connect("late");
const takeLate = inbox(late);
await late.subscribeAsync(`${topic}/kept`, { qos: 1 });
const kept = await takeLate();
seen.retained = [kept.payload, kept.retain];

const keep = { clean: false, clientId: `away-${unique}`, properties: protocolVersion === 5 ? { sessionExpiryInterval: 600 } : undefined };
const away = await connect("away", keep);
await away.subscribeAsync(`${topic}/away`, { qos: 1 });
await away.endAsync();
for (let number = 0; number < 5; number++) await publisher.publishAsync(`${topic}/away`, String(number), { qos: 1 });
const missed = [];
const back = mqtt.connect(url, { protocolVersion, reconnectPeriod: 0, ...keep });
await new Promise((resolve, reject) => {
  back.on("error", reject);
  back.on("message", (_, payload) => {
    missed.push(payload.toString());
    if (missed.length === 5) setImmediate(resolve); // after the last one has been acknowledged
  });
});
await back.endAsync();
seen.missed = missed;

const dying = await connect("dying", { will: { topic: `${topic}/will`, payload: Buffer.from("gone"), qos: 1 } });
for (let number = 0; number < 5; number++) await take();
dying.stream.destroy();
seen.will = (await take()).payload;

for (const client of [subscriber, publisher, late]) await client.endAsync();
console.log(JSON.stringify(seen));
process.exit(0);
