// Topics, records and groups.
import { html, useEffect, useRef, useState } from "/assets/preact-htm.js";
import { ask, get, query, segment, useAnswer } from "/assets/api.js";
import { Body, Card, Chart, Danger, Fold, Form, PagedTable, Table, Tags, Trouble, count, go, moment, useHistory } from "/assets/parts.js";

export function Topics({ me }) {
  const columns = [
    { name: "name", title: "Topic", of: (row) => html`<a href=${`#/topics/${segment(row.name)}`}>${row.name}</a>${row.internal ? html` <span class="tag">internal</span>` : null}` },
    { name: "partition_count", title: "Partitions", number: true },
    { name: "records", title: "Records", number: true, of: (row) => count(row.records) },
    { name: "rate", title: "Records/s", number: true, of: (row) => count(row.rate) },
  ];
  return html`<h2>Topics</h2><${PagedTable} path="/api/v1/topics" columns=${columns} empty="No topics yet." />
    ${me.administrator ? html`<${Fold} title="New topic"><${Form} action="Create" fields=${[
      { name: "name", title: "Name" }, { name: "partitions", title: "Partitions", kind: "number", value: 1 },
      { name: "config", title: "Settings, as JSON", wide: true, hint: '{"retention.ms": 86400000}' }]}
      send=${async (given) => {
        const config = given.config ? JSON.parse(given.config) : {};
        await ask("POST", "/api/v1/topics", { name: given.name, partitions: Number(given.partitions) || 1, config });
        go(`/topics/${segment(given.name)}`);
      }} /><//>` : null}`;
}

export function Topic({ name, me, given }) {
  const path = `/api/v1/topics/${segment(name)}`;
  const { value, error, reload } = useAnswer(path, 3000);
  const history = useHistory(value);
  if (!value) return html`<h2>${name}</h2><${Trouble} error=${error} />`;
  const columns = ["partition", "start", "end", "stable"].map((column) => ({ name: column, title: column[0].toUpperCase() + column.slice(1), number: true }));
  return html`<h2>${name}</h2><${Trouble} error=${error} />
    <div class="cards"><${Card} name="records">${count(value.records)}<//><${Card} name="records/s">${count(value.rate)}<//><${Card} name="partitions">${value.partitions.length}<//></div>
    <p><${Tags} of=${value.config} /></p>
    <${Chart} title="Records/s" times=${history.times} lines=${{ "records/s": history.line((each) => each.rate) }} />
    <h3>Records</h3><${Records} topic=${name} partitions=${value.partitions.length} given=${given} />
    <${Fold} title="Partitions"><${Table} columns=${columns} rows=${value.partitions} /><//>
    ${me.administrator && !value.internal ? html`
      <${Fold} title="Append a record"><${Form} action="Append" fields=${[
        { name: "key", title: "Key" }, { name: "partition", title: "Partition", kind: "number", value: 0 },
        { name: "headers", title: "Headers, as JSON", hint: '{"kind": "test"}' }, { name: "value", title: "Value", kind: "area" }]}
        send=${async (form) => {
          const body = { value: form.value, partition: Number(form.partition), headers: form.headers ? JSON.parse(form.headers) : {} };
          if (form.key) body.key = form.key;
          const made = await ask("POST", `${path}/records`, body);
          reload();
          return `Offset ${made.offset}.`;
        }} /><//>
      <${Fold} title="Replay a range into a queue or topic"><${Form} action="Replay" fields=${[
        { name: "partition", title: "Partition", kind: "number", value: 0 }, { name: "first", title: "From offset", kind: "number", value: 0 },
        { name: "last", title: "To offset", kind: "number" }, { name: "target", title: "Queue or topic" }]}
        send=${async (form) => {
          const body = { partition: Number(form.partition), first: Number(form.first), target: form.target };
          if (form.last !== "") body.last = Number(form.last);
          return `${(await ask("POST", `${path}/replay`, body)).replayed} records.`;
        }} /><//>
      <${Fold} title="Settings"><${Form} action="Change" fields=${[
        { name: "partitions", title: "Partitions (more only)", kind: "number", value: value.partitions.length },
        { name: "config", title: "Settings, as JSON; null removes one", wide: true, hint: '{"retention.ms": 86400000}' }]}
        send=${async (form) => {
          const body = { config: form.config ? JSON.parse(form.config) : {} };
          if (Number(form.partitions) !== value.partitions.length) body.partitions = Number(form.partitions);
          await ask("PATCH", path, body);
          reload();
        }} /><p><${Danger} text="Delete this topic" act=${async () => { await ask("DELETE", path); go("/topics"); }} /></p><//>` : null}`;
}

function Records({ topic, partitions, given }) {
  const [asked, setAsked] = useState({ partition: given.partition || "0", offset: given.offset || "", time: "", key: given.key || "", header: "", text: given.text || "", count: "50" });
  const [page, setPage] = useState(null);
  const [error, setError] = useState(null);
  const [live, setLive] = useState(false);
  const [shown, setShown] = useState("auto");
  const source = useRef(null);
  const path = `/api/v1/topics/${segment(topic)}`;
  const load = async (change = {}) => {
    const wish = { ...asked, ...change };
    setAsked(wish);
    const time = wish.time ? Date.parse(wish.time) : "";
    try {
      setPage(await get(`${path}/records${query({ ...wish, time, offset: time ? "" : wish.offset })}`));
      setError(null);
    } catch (failure) { setError(failure); }
  };
  useEffect(() => { load(); return () => source.current && source.current.close(); }, [topic]);
  const follow = () => {
    if (live) { source.current.close(); setLive(false); return; }
    const { partition, key, header, text } = asked;
    source.current = new EventSource(`${path}/follow${query({ partition, key, header, text })}`);
    source.current.onmessage = (event) => {
      const more = JSON.parse(event.data);
      setPage((before) => ({ ...more, records: [...(before ? before.records : []), ...more.records].slice(-200) }));
    };
    source.current.onerror = () => { source.current.close(); setLive(false); };
    setPage(null);
    setLive(true);
  };
  const field = (name, hint, size = 9) => html`<input name=${name} placeholder=${hint} aria-label=${hint} size=${size} value=${asked[name]}
    type=${name === "time" ? "datetime-local" : "text"} onInput=${(event) => setAsked({ ...asked, [name]: event.target.value })} onKeyDown=${(event) => event.key === "Enter" && load()} />`;
  const first = page && page.records.length ? page.records[0].offset : 0;
  const columns = [
    { name: "offset", title: "Offset", number: true, of: (row) => html`<a href=${`#/topics/${segment(topic)}?partition=${asked.partition}&offset=${row.offset}`}>${row.offset}</a>` },
    { name: "timestamp_ms", title: "Time", of: (row) => moment(row.timestamp_ms) },
    { name: "key", title: "Key", of: (row) => (row.key ? row.key.text ?? row.key.base64 : html`<span class="quiet">none</span>`) },
    { name: "value", title: "Value", of: (row) => html`<${Body} of=${row.value} as=${shown} />` },
    { name: "headers", title: "Headers, and what protocols call it", of: (row) => html`${row.headers.map(([name, held]) => html`<span class="tag">${name}=${held}</span>`)}
      ${Object.entries(row.views).map(([protocol, view]) => html`<div class="quiet">${protocol} <${Tags} of=${view} /></div>`)}` },
  ];
  return html`<div class="tools">
      ${partitions > 1 ? html`<select aria-label="partition" value=${asked.partition} onChange=${(event) => load({ partition: event.target.value, offset: "" })}>${[...Array(partitions).keys()].map((each) => html`<option>${each}</option>`)}</select>` : null}
      ${field("offset", "offset")} ${field("time", "time", 16)} ${field("key", "key")} ${field("header", "header=value", 12)} ${field("text", "text", 14)}
      <button class="main" onClick=${() => load()}>Show</button>
      <button onClick=${() => load({ offset: String(Math.max(0, first - Number(asked.count))), time: "" })}>‹ Earlier</button>
      <button onClick=${() => page && load({ offset: String(page.next), time: "" })}>Later ›</button>
      <button onClick=${() => load({ offset: "", time: "" })}>Newest</button>
      <button class=${live ? "main" : ""} onClick=${follow}>${live ? "Stop" : "Follow live"}</button>
      <select aria-label="show values as" value=${shown} onChange=${(event) => setShown(event.target.value)}><option value="auto">as it is</option><option value="text">text</option><option value="hex">hex</option></select>
    </div>
    <${Trouble} error=${error} />
    ${page ? html`<p class="quiet">${page.records.length} records, offsets ${page.start} to ${page.end}${page.passed_over ? `, ${page.passed_over} passed over` : ""}</p>` : null}
    <${Table} columns=${columns} rows=${page ? page.records : []} empty=${live ? "Waiting for records…" : "No records here."} />`;
}

export function Groups() {
  const columns = [
    { name: "name", title: "Group", of: (row) => html`<a href=${`#/groups/${segment(row.name)}`}>${row.name}</a>` },
    { name: "type", title: "Type" }, { name: "state", title: "State" },
    { name: "lag", title: "Behind", number: true, of: (row) => count(row.lag) },
  ];
  return html`<h2>Groups</h2><${PagedTable} path="/api/v1/groups" columns=${columns} empty="No consumer groups yet." />`;
}

export function Group({ name, me }) {
  const path = `/api/v1/groups/${segment(name)}`;
  const { value, error, reload } = useAnswer(path, 3000);
  const history = useHistory(value);
  const [preview, setPreview] = useState(null);
  if (!value) return html`<h2>${name}</h2><${Trouble} error=${error} />`;
  const lag = (group) => group.offsets.reduce((sum, each) => sum + each.lag, 0);
  const offsets = [
    { name: "topic", title: "Topic", of: (row) => html`<a href=${`#/topics/${segment(row.topic)}`}>${row.topic}</a>` },
    ...["partition", "committed", "end", "lag"].map((column) => ({ name: column, title: column === "lag" ? "Behind" : column[0].toUpperCase() + column.slice(1), number: true })),
  ];
  const members = [{ name: "client_id", title: "Client" }, { name: "host", title: "Host" }, { name: "id", title: "Member" }];
  const reset = async (form, only) => {
    const body = { topic: form.topic, to: form.to === "offset" ? Number(form.offset) : form.to, preview: only };
    if (form.to === "time") body.time = Date.parse(form.time);
    const { changes } = await ask("POST", `${path}/reset`, body);
    setPreview(changes);
    reload();
    return only ? "Nothing was changed yet." : "Done.";
  };
  const topics = [...new Set(value.offsets.map((each) => each.topic))];
  return html`<h2>${name}</h2><${Trouble} error=${error} />
    <div class="cards"><${Card} name="state">${value.state}<//><${Card} name="type">${value.type}<//><${Card} name="members">${value.members.length}<//><${Card} name="records behind">${count(lag(value))}<//></div>
    <${Chart} title="Records behind" times=${history.times} lines=${{ behind: history.line(lag) }} />
    <h3>Offsets</h3><${Table} columns=${offsets} rows=${value.offsets} empty="Nothing is committed." />
    <h3>Members</h3><${Table} columns=${members} rows=${value.members} empty="Nobody is a member." />
    ${me.administrator ? html`<${Fold} title="Reset offsets"><${Form} action="Reset, or preview" fields=${[
        { name: "topic", title: "Topic", options: topics.length ? topics : [""], value: topics[0] || "" },
        { name: "to", title: "To", options: ["earliest", "latest", "time", "offset"], value: "earliest" },
        { name: "time", title: "Time", kind: "datetime-local" }, { name: "offset", title: "Offset", kind: "number" },
        { name: "only", title: "Only preview", kind: "check", value: true }]} send=${(form) => reset(form, form.only === true)} />
      ${preview ? html`<${Table} rows=${preview} columns=${["topic", "partition", "before", "after"].map((column) => ({ name: column, title: column, number: column !== "topic" }))} />` : null}
      <p><${Danger} text="Delete this group" act=${async () => { await ask("DELETE", path); go("/groups"); }} /></p><//>` : null}`;
}
