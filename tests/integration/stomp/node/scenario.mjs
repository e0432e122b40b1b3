// StompJS over WebSocket or TCP: node scenario.mjs MODULES URL QUEUE TOPIC. Prints what it has seen, as JSON.
import net from "node:net";
import { createRequire } from "node:module";

const [modules, url, queue, topic] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { Client, Versions } = load("@stomp/stompjs");
const WebSocket = load("ws");

// What StompJS asks of a WebSocket, over a plain socket.
class TcpSocket {
  constructor(host, port) {
    this.binaryType = "arraybuffer";
    this.protocol = "v12.stomp";
    this.readyState = 0;
    this.url = `tcp://${host}:${port}`;
    this.socket = net.connect(port, host, () => {
      this.readyState = 1;
      this.onopen({});
    });
    this.socket.on("data", (data) => this.onmessage({ data: data.buffer.slice(data.byteOffset, data.byteOffset + data.length) }));
    this.socket.on("close", () => {
      this.readyState = 3;
      this.onclose({});
    });
    this.socket.on("error", (error) => this.onerror(error));
  }
  send(data) {
    this.socket.write(typeof data === "string" ? data : Buffer.from(data));
  }
  close() {
    this.readyState = 2;
    this.socket.end();
  }
}

const address = new URL(url);
const seen = { messages: [], nacked: [], topic: null, transaction: [], receipts: 0, version: null, error: null };
const until = (ready, what) =>
  new Promise((done, fail) => {
    const deadline = Date.now() + 20000;
    const look = () => (ready() ? done() : Date.now() > deadline ? fail(new Error(what)) : setTimeout(look, 5));
    look();
  });

const client = new Client({
  webSocketFactory: () =>
    address.protocol === "tcp:" ? new TcpSocket(address.hostname, Number(address.port)) : new WebSocket(url, ["v12.stomp"]),
  connectHeaders: { login: "guest", passcode: "guest", host: "/" },
  stompVersions: new Versions(["1.2", "1.1"]),
  heartbeatIncoming: 1000,
  heartbeatOutgoing: 1000,
  reconnectDelay: 0,
  forceBinaryWSFrames: false,
});
client.onStompError = (frame) => {
  seen.error = frame.headers.message;
};
const receipt = (id) => new Promise((done) => client.watchForReceipt(id, () => done(seen.receipts++)));

client.onConnect = async (frame) => {
  try {
    seen.version = frame.headers.version;
    let told = receipt("sent");
    client.publish({ destination: queue, body: "grüße", headers: { receipt: "sent", colour: "red:green", persistent: "true" } });
    await told;
    client.publish({ destination: queue, binaryBody: new Uint8Array([0, 1, 255]), headers: { "content-type": "application/octet-stream" } });
    client.subscribe(
      queue,
      (message) => {
        const binary = message.headers["content-type"] === "application/octet-stream";
        seen.messages.push([binary ? Array.from(message.binaryBody) : message.body, message.headers.colour ?? null, message.headers.redelivered]);
        if (message.headers.redelivered === "false" && message.headers.colour) {
          seen.nacked.push(message.body);
          message.nack();
        } else message.ack();
      },
      { ack: "client-individual" },
    );
    await until(() => seen.messages.length === 3, "messages");
    client.subscribe(topic, (message) => (seen.topic = [message.headers.destination, message.body]));
    told = receipt("topic");
    client.publish({ destination: topic, body: "news", headers: { receipt: "topic" } });
    await told;
    await until(() => seen.topic, "the topic");
    for (const end of ["abort", "commit"]) {
      const transaction = client.begin();
      client.publish({ destination: `${queue}-t`, body: end, headers: { transaction: transaction.id } });
      transaction[end]();
    }
    client.subscribe(`${queue}-t`, (message) => seen.transaction.push(message.body));
    await until(() => seen.transaction.length, "the transaction");
    await new Promise((done) => setTimeout(done, 2500)); // two heart-beats each way
    seen.connected = client.connected;
    console.log(JSON.stringify(seen));
    await client.deactivate();
  } catch (error) {
    console.error(error, JSON.stringify(seen));
    process.exit(1);
  }
};
client.activate();
