// Log in over TLS, send a message to oneself and print it: modules, url, ca, "password" or "certificate", certificate, key.
const [modules, url, ca, how, certificate, key] = process.argv.slice(2);
const fs = require("fs");
const amqp = require(`${modules}/amqplib`);

async function main() {
  const options = { ca: [fs.readFileSync(ca)], servername: "localhost" };
  if (how === "certificate") {
    options.cert = fs.readFileSync(certificate);
    options.key = fs.readFileSync(key);
    options.credentials = amqp.credentials.external();
  }
  const connection = await amqp.connect(url, options);
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  channel.sendToQueue(queue, Buffer.from("body"));
  await channel.waitForConfirms();
  const message = await channel.get(queue, { noAck: true });
  console.log(message.content.toString());
  await connection.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
