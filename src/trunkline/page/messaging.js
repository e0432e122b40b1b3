// Queues, exchanges and what goes through them.
import { html } from "/assets/preact-htm.js";
import { ask, segment, useAnswer } from "/assets/api.js";
import { Body, Card, Chart, Danger, Fold, Form, PagedTable, Table, Tags, Trouble, bytes, count, go, moment, useHistory } from "/assets/parts.js";

const where = (vhost, name) => `${segment(vhost)}/${segment(name)}`;
const rate = (of, name) => (of.message_stats ? of.message_stats[`${name}_details`].rate : 0);

export function Queues({ me }) {
  const columns = [
    { name: "name", title: "Queue", of: (row) => html`<a href=${`#/queues/${where(row.vhost, row.name)}`}>${row.name}</a>` },
    { name: "vhost", title: "Virtual host" },
    { name: "messages_ready", title: "Ready", number: true, of: (row) => count(row.messages_ready) },
    { name: "messages_unacknowledged", title: "Unacked", number: true, of: (row) => count(row.messages_unacknowledged) },
    { name: "messages_delayed", title: "Delayed", number: true, of: (row) => count(row.messages_delayed) },
    { name: "consumers", title: "Consumers", number: true },
    { name: "in", by: "message_stats.publish_details.rate", title: "In/s", number: true, of: (row) => count(rate(row, "publish")) },
    { name: "out", by: "message_stats.deliver_get_details.rate", title: "Out/s", number: true, of: (row) => count(rate(row, "deliver_get")) },
    { name: "arguments", title: "Arguments", of: (row) => html`${row.durable ? null : html`<span class="tag">transient</span>`}<${Tags} of=${row.arguments} />` },
  ];
  return html`<h2>Queues</h2><${PagedTable} path="/api/queues" columns=${columns} empty="No queues yet." />
    ${me.administrator ? html`<${Fold} title="New queue"><${Form} action="Create" fields=${[
      { name: "vhost", title: "Virtual host", value: "/" }, { name: "name", title: "Name" }, { name: "durable", title: "Durable", kind: "check", value: true },
      { name: "arguments", title: "Arguments, as JSON", wide: true, hint: '{"x-dead-letter-exchange": "", "x-max-length": 1000}' }]}
      send=${async (form) => {
        await ask("PUT", `/api/queues/${where(form.vhost, form.name)}`, { durable: form.durable === true, arguments: form.arguments ? JSON.parse(form.arguments) : {} });
        go(`/queues/${where(form.vhost, form.name)}`);
      }} /><//>` : null}`;
}

export function Queue({ vhost, name, me }) {
  const path = `/api/queues/${where(vhost, name)}`, own = `/api/v1/queues/${where(vhost, name)}`;
  const { value, error, reload } = useAnswer(path, 2000);
  const bindings = useAnswer(`${path}/bindings`, 10000);
  const messages = useAnswer(`${own}/messages?count=50`, 5000);
  const delayed = useAnswer(`${own}/delayed`, 5000);
  const history = useHistory(value);
  if (!value) return html`<h2>${name}</h2><${Trouble} error=${error} />`;
  const again = () => { reload(); messages.reload(); delayed.reload(); };
  const text = (row) => html`<${Body} of=${shown(row.body)} />`;
  const peeked = [
    { name: "offset", title: "Offset", number: true, of: (row) => html`<a href=${`#/topics/${segment(value.topic)}?offset=${row.offset}`}>${row.offset}</a>` },
    { name: "timestamp_ms", title: "Time", of: (row) => moment(row.timestamp_ms) },
    { name: "body", title: "Body", of: text },
    { name: "headers", title: "Headers", of: (row) => html`${row.headers.map(([header, held]) => html`<span class="tag">${header}=${held}</span>`)}${row.redelivered ? html`<span class="tag">redelivered</span>` : null}` },
  ];
  const waiting = [
    { name: "id", title: "Id", number: true }, { name: "due_ms", title: "Due", of: (row) => moment(row.due_ms) }, { name: "body", title: "Body", of: text },
    { title: "", of: (row) => (me.administrator ? html`<${Danger} text="Cancel" act=${async () => { await ask("DELETE", `${own}/delayed/${row.id}`); again(); }} />` : null) },
  ];
  const bound = [{ name: "source", title: "Exchange", of: (row) => row.source || "(default)" }, { name: "routing_key", title: "Routing key" }, { name: "arguments", title: "Arguments", of: (row) => html`<${Tags} of=${row.arguments} />` }];
  return html`<h2>${name}</h2><${Trouble} error=${error} />
    <p><span class="tag">vhost ${vhost}</span><span class="tag">${value.durable ? "durable" : "transient"}</span><${Tags} of=${value.arguments} /> the topic <a href=${`#/topics/${segment(value.topic)}`}>${value.topic}</a></p>
    <div class="cards"><${Card} name="ready">${count(value.messages_ready)}<//><${Card} name="unacknowledged">${count(value.messages_unacknowledged)}<//>
      <${Card} name="delayed">${count(value.messages_delayed)}<//><${Card} name="dead-lettered">${count(value.messages_dead_lettered)}<//>
      <${Card} name="consumers">${value.consumers}<//><${Card} name="bytes ready">${bytes(value.message_bytes_ready)}<//></div>
    <div class="charts"><${Chart} title="Messages" times=${history.times} lines=${{ ready: history.line((each) => each.messages_ready), unacked: history.line((each) => each.messages_unacknowledged) }} />
      <${Chart} title="Messages/s" times=${history.times} lines=${{ in: history.line((each) => rate(each, "publish")), out: history.line((each) => rate(each, "deliver_get")), acknowledged: history.line((each) => rate(each, "ack")) }} /></div>
    <h3>Next messages</h3><${Table} columns=${peeked} rows=${messages.value || []} empty="The queue is empty." />
    ${delayed.value && delayed.value.length ? html`<h3>Delayed</h3><${Table} columns=${waiting} rows=${delayed.value} />` : null}
    <${Fold} title="Bindings"><${Table} columns=${bound} rows=${bindings.value || []} /><//>
    ${me.administrator ? html`
      <${Fold} title="Publish"><${Publish} vhost=${vhost} exchange="amq.default" routingKey=${name} done=${again} /><//>
      <${Fold} title="Move messages to another queue"><${Form} action="Move" fields=${[{ name: "target", title: "Queue" }, { name: "count", title: "At most", kind: "number", value: 1000 }]}
        send=${async (form) => { const { moved } = await ask("POST", `${own}/move`, { target: form.target, count: Number(form.count) }); again(); return `${moved} messages.`; }} /><//>
      <p class="tools"><${Danger} text="Purge" act=${async () => { await ask("DELETE", `${path}/contents`); again(); }} />
        <${Danger} text="Delete this queue" act=${async () => { await ask("DELETE", path); go("/queues"); }} /></p>` : null}`;
}

function shown(encoded) {
  if (encoded === null || encoded === undefined) return null;
  const raw = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
    let kind = "text";
    try { if (/^[{[]/.test(text)) { JSON.parse(text); kind = "json"; } } catch { /* text it is */ }
    return { text, kind };
  } catch { return { base64: encoded }; }
}

function Publish({ vhost, exchange, routingKey = "", done }) {
  return html`<${Form} action="Publish" fields=${[
      { name: "routing_key", title: "Routing key", value: routingKey }, { name: "content_type", title: "Content type", value: "text/plain" },
      { name: "headers", title: "Headers, as JSON", hint: '{"x-delay": 5000}' }, { name: "persistent", title: "Persistent", kind: "check", value: true },
      { name: "payload", title: "Body", kind: "area" }]}
    send=${async (form) => {
      const properties = { content_type: form.content_type, delivery_mode: form.persistent ? 2 : 1, headers: form.headers ? JSON.parse(form.headers) : {} };
      const body = { properties, routing_key: form.routing_key, payload: form.payload, payload_encoding: "string" };
      const { routed } = await ask("POST", `/api/exchanges/${where(vhost, exchange)}/publish`, body);
      if (done) done();
      return routed ? "Published." : "Published, and routed nowhere.";
    }} />`;
}

export function Exchanges({ me }) {
  const columns = [
    { name: "name", title: "Exchange", of: (row) => html`<a href=${`#/exchanges/${where(row.vhost, row.name || "amq.default")}`}>${row.name || "(default)"}</a>` },
    { name: "vhost", title: "Virtual host" }, { name: "type", title: "Type" },
    { name: "arguments", title: "Arguments", of: (row) => html`${row.durable ? null : html`<span class="tag">transient</span>`}${row.internal ? html`<span class="tag">internal</span>` : null}<${Tags} of=${row.arguments} />` },
  ];
  return html`<h2>Exchanges</h2><${Graph} /><${PagedTable} path="/api/exchanges" columns=${columns} />
    ${me.administrator ? html`<${Fold} title="New exchange"><${Form} action="Create" fields=${[
      { name: "vhost", title: "Virtual host", value: "/" }, { name: "name", title: "Name" },
      { name: "type", title: "Type", options: ["direct", "fanout", "topic", "headers", "x-content", "x-delayed-message"], value: "topic" },
      { name: "arguments", title: "Arguments, as JSON", hint: '{"alternate-exchange": "other"}' }]}
      send=${async (form) => {
        await ask("PUT", `/api/exchanges/${where(form.vhost, form.name)}`, { type: form.type, durable: true, arguments: form.arguments ? JSON.parse(form.arguments) : {} });
        go(`/exchanges/${where(form.vhost, form.name)}`);
      }} /><//>` : null}`;
}

const MOST_DRAWN = 60;

// Exchanges on the left, queues on the right, a line for each binding.
function Graph() {
  const { value } = useAnswer("/api/bindings?page=1&page_size=500&sort=source", 10000);
  const bindings = (value ? value.items : []).filter((each) => each.source !== "");
  if (!bindings.length) return null;
  const left = [...new Set(bindings.map((each) => each.source))], right = [...new Set(bindings.map((each) => `${each.destination_type[0]}:${each.destination}`))];
  if (left.length + right.length > MOST_DRAWN) return html`<p class="quiet">${bindings.length} bindings: too many to draw.</p>`;
  const step = 34, height = Math.max(left.length, right.length) * step + 20;
  const at = (list, name) => (list.indexOf(name) + 0.5) * (height / list.length);
  const box = (name, x, y, href) => html`<a href=${href}><rect x=${x} y=${y - 12} width="230" height="24" rx="6" /><text x=${x + 10} y=${y + 4}>${name.length > 30 ? name.slice(0, 29) + "…" : name}</text></a>`;
  return html`<div class="scroll"><svg class="graph" viewBox=${`0 0 760 ${height}`} role="img" aria-label="exchanges, bindings and queues">
    ${bindings.map((each) => {
      const from = at(left, each.source), to = at(right, `${each.destination_type[0]}:${each.destination}`);
      return html`<path d=${`M 240 ${from} C 330 ${from}, 430 ${to}, 520 ${to}`}><title>${each.routing_key || "(no key)"}</title></path>
        <text class="quiet" x="380" y=${(from + to) / 2 - 4} text-anchor="middle">${each.routing_key.slice(0, 24)}</text>`;
    })}
    ${left.map((name) => box(name, 10, at(left, name), `#/exchanges/${where(bindings.find((each) => each.source === name).vhost, name)}`))}
    ${right.map((mark) => { const to = bindings.find((each) => `${each.destination_type[0]}:${each.destination}` === mark);
      return box(to.destination, 520, at(right, mark), `#/${to.destination_type}s/${where(to.vhost, to.destination)}`); })}
  </svg></div>`;
}

export function Exchange({ vhost, name, me }) {
  const path = `/api/exchanges/${where(vhost, name)}`;
  const { value, error } = useAnswer(path, 10000);
  const out = useAnswer(`${path}/bindings/source`, 5000);
  if (!value) return html`<h2>${name}</h2><${Trouble} error=${error} />`;
  const unbind = (row) => async () => {
    const kind = row.destination_type === "queue" ? "q" : "e";
    await ask("DELETE", `/api/bindings/${segment(vhost)}/e/${segment(name)}/${kind}/${segment(row.destination)}/${segment(row.properties_key)}`);
    out.reload();
  };
  const columns = [
    { name: "destination", title: "To", of: (row) => html`<a href=${`#/${row.destination_type}s/${where(vhost, row.destination)}`}>${row.destination}</a> <span class="quiet">${row.destination_type}</span>` },
    { name: "routing_key", title: "Routing key" }, { name: "arguments", title: "Arguments", of: (row) => html`<${Tags} of=${row.arguments} />` },
    { title: "", of: (row) => (me.administrator && value.name ? html`<${Danger} text="Unbind" act=${unbind(row)} />` : null) },
  ];
  return html`<h2>${value.name || "(default)"}</h2><p><span class="tag">${value.type}</span><span class="tag">vhost ${vhost}</span><${Tags} of=${value.arguments} /></p>
    <h3>Bindings</h3><${Table} columns=${columns} rows=${out.value || []} empty="Nothing is bound." />
    ${me.administrator ? html`
      ${value.name ? html`<${Fold} title="Bind"><${Form} action="Bind" fields=${[
        { name: "kind", title: "To a", options: ["queue", "exchange"], value: "queue" }, { name: "destination", title: "Name" },
        { name: "routing_key", title: "Routing key" }, { name: "arguments", title: "Arguments, as JSON" }]}
        send=${async (form) => {
          const body = { routing_key: form.routing_key, arguments: form.arguments ? JSON.parse(form.arguments) : {} };
          await ask("POST", `/api/bindings/${segment(vhost)}/e/${segment(name)}/${form.kind[0]}/${segment(form.destination)}`, body);
          out.reload();
        }} /><//>` : null}
      <${Fold} title="Publish"><${Publish} vhost=${vhost} exchange=${name} /><//>
      ${value.name && !value.name.startsWith("amq.") ? html`<p><${Danger} text="Delete this exchange" act=${async () => { await ask("DELETE", path); go("/exchanges"); }} /></p>` : null}` : null}`;
}
