// Log in over TLS, publish to oneself and print it: modules, url, ca, options as JSON with files for cert and key.
import fs from "node:fs";
import { createRequire } from "node:module";

const [library, url, ca, given] = process.argv.slice(2);
const mqtt = createRequire(`${library}/`)("mqtt");
const { cert, key, ...login } = JSON.parse(given);
const options = { ca: fs.readFileSync(ca), servername: "localhost", reconnectPeriod: 0, connectTimeout: 20000, ...login };
if (cert) Object.assign(options, { cert: fs.readFileSync(cert), key: fs.readFileSync(key) });
if (url.startsWith("wss")) options.wsOptions = { ca: options.ca, cert: options.cert, key: options.key, servername: "localhost" };
try {
  const client = await mqtt.connectAsync(url, options, false);
  const topic = `security/${process.pid}`;
  const heard = new Promise((resolve) => client.on("message", (_, payload) => resolve(payload.toString())));
  await client.subscribeAsync(topic, { qos: 1 });
  await client.publishAsync(topic, "body", { qos: 1 });
  console.log(await heard);
  await client.endAsync();
} catch (error) {
  console.log(`refused ${error.code ?? error.message}`);
  process.exit(2);
}
