// The broker as a whole: overview, connections, MQTT, users, events.
import { html, useRef, useState } from "/assets/preact-htm.js";
import { ask, get, query, segment, useAnswer } from "/assets/api.js";
import { Card, Chart, Danger, Fold, Form, PagedTable, Table, Tags, Trouble, bytes, count, moment, span, useHistory } from "/assets/parts.js";

export function Overview() {
  const { value, error } = useAnswer("/api/v1/overview", 2000);
  const history = useHistory(value);
  if (!value) return html`<h2>Overview</h2><${Trouble} error=${error} />`;
  const { totals, rates, node } = value, queued = value.queue_totals;
  const rate = (name) => history.line((each) => each.rates[name]);
  return html`<h2>Overview</h2><${Trouble} error=${error} />
    ${value.blocked ? html`<p class="note bad">Publishers wait: ${value.blocked}.</p>` : null}
    <div class="cards">
      <${Card} name="topics"><a href="#/topics">${count(totals.topics)}</a><//><${Card} name="records">${count(totals.records)}<//>
      <${Card} name="queues"><a href="#/queues">${count(totals.queues)}</a><//><${Card} name="messages ready">${count(queued.messages_ready)}<//>
      <${Card} name="unacknowledged">${count(queued.messages_unacknowledged)}<//><${Card} name="groups"><a href="#/groups">${count(totals.groups)}</a><//>
      <${Card} name="connections"><a href="#/connections">${count(totals.connections)}</a><//><${Card} name="consumers">${count(totals.consumers)}<//>
    </div>
    <div class="charts">
      <${Chart} title="Records appended to the log/s" times=${history.times} lines=${{ log: rate("log") }} />
      <${Chart} title="Queues, messages/s" times=${history.times} lines=${{ published: rate("publish"), delivered: rate("deliver"), acknowledged: rate("acknowledge") }} />
      <${Chart} title="MQTT, messages/s" times=${history.times} lines=${{ in: rate("mqtt_in"), out: rate("mqtt_out") }} />
      <${Chart} title="Messages in queues" times=${history.times} lines=${{ ready: history.line((each) => each.queue_totals.messages_ready), unacked: history.line((each) => each.queue_totals.messages_unacknowledged) }} />
      <${Chart} title="Memory" times=${history.times} lines=${{ resident: history.line((each) => each.node.memory_bytes) }} unit=${bytes} />
      <${Chart} title="Disk free" times=${history.times} lines=${{ free: history.line((each) => each.node.disk_free_bytes) }} unit=${bytes} />
    </div>
    <h3>The process</h3>
    <div class="cards"><${Card} name="up">${span(value.uptime_ms)}<//><${Card} name="memory">${bytes(node.memory_bytes)}<//><${Card} name="disk free">${bytes(node.disk_free_bytes)}<//>
      <${Card} name=${`of ${count(node.max_open_files)} files`}>${node.open_files}<//><${Card} name="CPU time">${span(node.cpu_s * 1000)}<//><${Card} name="not taken by clients">${bytes(value.unsent_bytes)}<//></div>
    <h3>Listeners</h3><${Table} columns=${[{ name: "name", title: "Protocol" }, { name: "port", title: "Port", number: true }]} rows=${value.listeners} />
    <p class="quiet">Trunkline ${value.version}, cluster ${value.cluster_id}. <a href="/metrics">Metrics</a> · <a href="/api/v1/openapi.json">API</a></p>`;
}

export function Connections({ me }) {
  const { value, error, reload } = useAnswer("/api/v1/connections", 3000);
  const columns = [
    { name: "name", title: "Client" }, { name: "protocol", title: "Protocol" }, { name: "user", title: "User" }, { name: "listener", title: "Listener" },
    { name: "vhost", title: "Virtual host" }, { name: "channels", title: "Channels", number: true },
    { name: "client_properties", title: "Program", of: (row) => [row.client_properties.connection_name, row.client_properties.product, row.client_properties.version, row.client_properties.client_id].filter(Boolean).join(" ") },
    { name: "connected_ms", title: "Since", of: (row) => moment(row.connected_ms) },
    { title: "", of: (row) => (me.administrator ? html`<${Danger} text="Close" act=${async () => { await ask("DELETE", `/api/v1/connections/${segment(row.id)}`); reload(); }} />` : null) },
  ];
  return html`<h2>Connections</h2><${Trouble} error=${error} /><${Table} columns=${columns} rows=${value || []} empty="Nobody is connected." />`;
}

export function Mqtt({ me }) {
  const sessions = useAnswer("/api/v1/mqtt/sessions", 3000), [wanted, setWanted] = useState("#");
  const retained = useAnswer(`/api/v1/mqtt/retained${query({ filter: wanted || "#" })}`, 2000);
  const columns = [
    { name: "client_id", title: "Client" }, { name: "connected", title: "Connected", of: (row) => (row.connected ? html`<span class="good">yes</span>` : "no") },
    { name: "version", title: "Version" }, { name: "user", title: "User" }, { name: "subscription_count", title: "Subscriptions", number: true },
    { name: "inflight", title: "In flight", number: true }, { name: "records_behind", title: "Behind", number: true, of: (row) => count(row.records_behind) },
    { title: "", of: (row) => (me.administrator ? html`<${Danger} text="End" act=${async () => { await ask("DELETE", `/api/v1/mqtt/sessions/${segment(row.client_id)}`); sessions.reload(); }} />` : null) },
  ];
  return html`<h2>MQTT</h2><${Trouble} error=${sessions.error} />
    <h3>Sessions</h3><${Table} columns=${columns} rows=${sessions.value ? sessions.value.sessions : []} empty="No sessions." />
    <h3>Retained messages</h3><div class="tools"><input aria-label="topic filter" value=${wanted} onChange=${(event) => setWanted(event.target.value)} />
      ${retained.value ? html`<span class="quiet">${retained.value.total} messages</span>` : null}</div><${Trouble} error=${retained.error} />
    <div class="card tree"><${Tree} of=${grown(retained.value ? retained.value.messages : [])} /></div>
    ${me.administrator ? html`<${Fold} title="Forget retained messages"><${Form} action="Forget" danger fields=${[{ name: "filter", title: "Topic filter", hint: "site/a/#" }]}
      send=${async (form) => { const { cleared } = await ask("DELETE", `/api/v1/mqtt/retained${query({ filter: form.filter })}`); retained.reload(); return `${cleared} messages.`; }} /><//>` : null}`;
}

function grown(messages) {
  const root = { inner: new Map() };
  for (const message of messages) {
    let at = root;
    for (const level of message.topic.split("/")) {
      if (!at.inner.has(level)) at.inner.set(level, { inner: new Map() });
      at = at.inner.get(level);
    }
    at.message = message;
  }
  return root;
}

function Tree({ of }) {
  if (!of.inner.size) return html`<span class="quiet">Nothing is retained.</span>`;
  const branch = (node) => html`<ul>${[...node.inner].map(([level, inner]) => html`<li><b>${level || "(empty)"}</b>
    ${inner.message ? html` <span>${inner.message.payload ?? ""}</span> <span class="quiet">${bytes(inner.message.bytes)}, QoS ${inner.message.qos}, ${moment(inner.message.timestamp_ms)}</span>` : null}
    ${inner.inner.size ? branch(inner) : null}</li>`)}</ul>`;
  return branch(of);
}

export function Users() {
  const reload = useRef(() => {});
  const again = () => reload.current();
  const permissions = useAnswer("/api/permissions", 10000);
  const columns = [
    { name: "name", title: "User" }, { name: "tags", title: "Tags", of: (row) => row.tags.map((tag) => html`<span class="tag">${tag}</span>`) },
    { title: "Permissions", of: (row) => (permissions.value || []).filter((each) => each.user === row.name).map((each) => html`<div><span class="tag">${each.vhost}</span><${Tags} of=${{ configure: each.configure, write: each.write, read: each.read }} /></div>`) },
    { title: "", of: (row) => html`<${Danger} text="Delete" act=${async () => { await ask("DELETE", `/api/users/${segment(row.name)}`); again(); }} />` },
  ];
  return html`<h2>Users</h2><${PagedTable} path="/api/users" columns=${columns} onRows=${(load) => { reload.current = load; }} />
    <${Fold} title="Add a user, or give one another password"><${Form} action="Save" fields=${[{ name: "name", title: "Name" }, { name: "password", title: "Password", kind: "password" }, { name: "tags", title: "Tags", hint: "administrator, management" }]}
      send=${async (form) => { await ask("PUT", `/api/users/${segment(form.name)}`, { password: form.password, tags: form.tags }); again(); }} /><//>
    <${Fold} title="Set permissions"><${Form} action="Save" fields=${[{ name: "user", title: "User" }, { name: "vhost", title: "Virtual host", value: "/" },
      ...["configure", "write", "read"].map((name) => ({ name, title: name, value: ".*" }))]}
      send=${async ({ user, vhost, ...rights }) => { await ask("PUT", `/api/permissions/${segment(vhost)}/${segment(user)}`, rights); permissions.reload(); }} /><//>`;
}

export function Events() {
  const { value, error } = useAnswer("/api/v1/audit?count=500", 3000);
  const columns = [
    { name: "time_ms", title: "Time", of: (row) => moment(row.time_ms) }, { name: "kind", title: "What" }, { name: "user", title: "User" }, { name: "host", title: "From" },
    { name: "protocol", title: "Protocol" }, { name: "target", title: "About" }, { name: "text", title: "", of: (row) => `${row.text || ""}${row.count ? ` (${row.count} times)` : ""}` },
  ];
  return html`<h2>Events</h2><p class="quiet">Logins, refusals and changes, newest first.</p><${Trouble} error=${error} />
    <${Table} columns=${columns} rows=${value ? [...value.events].reverse() : []} empty="Nothing has happened yet." />`;
}
