// What views are made of: numbers for people, tables, charts, forms, messages.
import { html, useEffect, useRef, useState } from "/assets/preact-htm.js";
import { query, useAnswer } from "/assets/api.js";

// -- numbers and times

export function count(value) {
  if (value === null || value === undefined) return "";
  if (Math.abs(value) < 10000) return Number.isInteger(value) ? String(value) : value.toFixed(1);
  const units = ["k", "M", "G", "T"];
  let rest = value, unit = -1;
  while (Math.abs(rest) >= 1000 && unit < units.length - 1) { rest /= 1000; unit += 1; }
  return `${rest.toFixed(Math.abs(rest) < 100 ? 1 : 0)} ${units[unit]}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let rest = value / 1024, unit = 0;
  while (rest >= 1024 && unit < units.length - 1) { rest /= 1024; unit += 1; }
  return `${rest.toFixed(rest < 100 ? 1 : 0)} ${units[unit]}`;
}

export const moment = (ms) => (ms > 0 ? new Date(ms).toLocaleString() : "");

export function span(ms) {
  const seconds = Math.floor(ms / 1000), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} days`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

// -- where we are: the part behind `#`, so that every view has an address

export const go = (path) => { location.hash = path; };
export function useAddress() {
  const read = () => location.hash.slice(1) || "/";
  const [address, set] = useState(read());
  useEffect(() => {
    const changed = () => { set(read()); window.scrollTo(0, 0); };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return address;
}

// -- words

export const Trouble = ({ error }) => (error ? html`<p class="note bad" role="alert">${error.message}</p>` : null);
export const Card = ({ name, children }) => html`<div class="card"><b>${children}</b><span>${name}</span></div>`;
export const Tags = ({ of }) => html`${Object.entries(of || {}).map(([name, value]) =>
  html`<span class="tag">${name}=${typeof value === "object" ? JSON.stringify(value) : String(value)}</span>`)}`;

// A body as the API shows it: text, JSON laid out, or bytes in hexadecimal.
export function Body({ of, as = "auto" }) {
  if (!of) return html`<span class="quiet">none</span>`;
  let text = of.text;
  if (text === undefined || as === "hex") {
    const raw = text === undefined ? atob(of.base64) : String.fromCharCode(...new TextEncoder().encode(text));
    const lines = [];
    for (let at = 0; at < raw.length; at += 16) {
      const part = [...raw.slice(at, at + 16)];
      const numbers = part.map((c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
      const shown = part.map((c) => (c >= " " && c <= "~" ? c : ".")).join("");
      lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers.padEnd(47)}  ${shown}`);
    }
    text = lines.join("\n");
  } else if (of.kind === "json" && as === "auto") {
    text = JSON.stringify(JSON.parse(text), null, 2);
  }
  return html`<pre>${text}</pre>${of.cut ? html`<span class="quiet">cut</span>` : null}`;
}

// -- tables

// A table whose rows the page has. `columns`: {name, title, of(row), number?, sort?(row)}.
export function Table({ columns, rows, empty = "Nothing here." }) {
  const [text, setText] = useState("");
  const [order, setOrder] = useState({ name: null, down: false });
  const wanted = text.toLowerCase();
  const plain = (row) => JSON.stringify(row).toLowerCase();
  let shown = wanted ? rows.filter((row) => plain(row).includes(wanted)) : rows;
  const column = columns.find((each) => each.name === order.name);
  if (column) {
    const key = column.sort || ((row) => row[column.name]);
    shown = [...shown].sort((a, b) => compare(key(a), key(b)) * (order.down ? -1 : 1));
  }
  return html`<div>
    ${rows.length > 8 ? html`<div class="tools"><${Filter} value=${text} set=${setText} /><span class="quiet">${shown.length} of ${rows.length}</span></div>` : null}
    <${Grid} columns=${columns} rows=${shown.slice(0, 1000)} order=${order} setOrder=${setOrder} empty=${empty} />
  </div>`;
}

// A table whose rows come from the broker page by page. The broker filters and sorts.
export function PagedTable({ path, columns, extra = {}, ms = 5000, size = 50, empty, onRows }) {
  const [text, setText] = useState("");
  const [page, setPage] = useState(1);
  const [order, setOrder] = useState({ name: "name", down: false });
  const asked = path + query({ page, page_size: size, name: text, sort: order.name, sort_reverse: order.down, ...extra });
  const { value, error, reload } = useAnswer(asked, ms);
  useEffect(() => { if (onRows) onRows(reload); });
  useEffect(() => { if (error && page > 1) setPage(1); }, [error]);
  const last = useRef(null);
  if (value) last.current = value;
  const found = last.current;
  return html`<div>
    <div class="tools">
      <${Filter} value=${text} set=${(next) => { setText(next); setPage(1); }} />
      ${found ? html`<span class="quiet">${found.filtered_count} of ${found.total_count}</span>` : null}
      ${found && found.page_count > 1 ? html`
        <button disabled=${page <= 1} onClick=${() => setPage(page - 1)} aria-label="previous page">‹</button>
        <span>${page} / ${found.page_count}</span>
        <button disabled=${page >= found.page_count} onClick=${() => setPage(page + 1)} aria-label="next page">›</button>` : null}
    </div>
    <${Trouble} error=${error} />
    <${Grid} columns=${columns} rows=${found ? found.items : []} order=${order} setOrder=${setOrder} empty=${found ? empty : "…"} />
  </div>`;
}

const Filter = ({ value, set }) => html`<input type="search" class="filter" placeholder="Filter  ( / )" aria-label="filter" value=${value}
  onInput=${(event) => set(event.target.value)} />`;

function Grid({ columns, rows, order, setOrder, empty }) {
  const head = (column) => {
    const here = order.name === (column.by || column.name);
    const sorted = () => setOrder({ name: column.by || column.name, down: here ? !order.down : Boolean(column.number) });
    return html`<th class=${column.number ? "n" : ""} aria-sort=${here ? (order.down ? "descending" : "ascending") : "none"}>
      ${column.name ? html`<button onClick=${sorted}>${column.title}${here ? (order.down ? " ↓" : " ↑") : ""}</button>` : column.title}</th>`;
  };
  return html`<div class="scroll"><table>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${columns.map((column) => html`<td class=${column.number ? "n" : ""}>${column.of ? column.of(row) : row[column.name]}</td>`)}</tr>`)}
    ${rows.length ? null : html`<tr><td colspan=${columns.length} class="quiet">${empty || "Nothing here."}</td></tr>`}</tbody>
  </table></div>`;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true });
}

// -- charts: lines over the last minutes, drawn by uPlot

const COLOURS = ["#0b8f8f", "#d9822b", "#7157d9", "#c23030", "#29a634", "#1f6fb5"];

const SHOWN_S = 180;

export function Chart({ title, times, lines, unit = count }) {
  const place = useRef(null), plot = useRef(null);
  const names = Object.keys(lines);
  useEffect(() => {
    const quiet = getComputedStyle(document.documentElement).getPropertyValue("--quiet").trim();
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const width = () => Math.max(200, place.current.clientWidth);
    plot.current = new uPlot({
      width: width(), height: 170, legend: { live: true }, cursor: { y: false },
      axes: [axis, { ...axis, size: 60, values: (_, ticks) => ticks.map((tick) => unit(tick)) }],
      scales: { x: { range: () => { const end = Date.now() / 1000; return [end - SHOWN_S, end]; } }, y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
      series: [{}, ...names.map((name, at) => ({ label: name, stroke: COLOURS[at % COLOURS.length], width: 2, value: (_, v) => (v === null ? "" : unit(v)) }))],
    }, [[], ...names.map(() => [])], place.current);
    const resized = new ResizeObserver(() => plot.current && plot.current.setSize({ width: width(), height: 170 }));
    resized.observe(place.current);
    return () => { resized.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [names.join()]);
  useEffect(() => { if (plot.current) plot.current.setData([times, ...names.map((name) => lines[name])]); });
  return html`<div class="chart"><h4>${title}</h4><div ref=${place}></div></div>`;
}

// Values as they were each time that they came, for charts.
export function useHistory(value, most = 180) {
  const kept = useRef([]);
  const last = useRef(null);
  if (value && value !== last.current) {
    last.current = value;
    kept.current = [...kept.current, { at: Date.now() / 1000, value }].slice(-most);
  }
  const times = kept.current.map((each) => each.at);
  return { times, line: (of) => kept.current.map((each) => of(each.value)) };
}

// -- forms

// `fields`: {name, title, kind?, value?, wide?, options?, hint?}. `send` gets the values; what it returns is shown.
export function Form({ fields, action, send, danger }) {
  const start = Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""]));
  const [values, setValues] = useState(start);
  const [state, setState] = useState({});
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      const said = await send(values);
      setState({ said: said || "Done." });
    } catch (error) {
      setState({ error });
    }
  };
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  const input = (field) => {
    const common = { name: field.name, value: values[field.name], onInput: set(field.name), placeholder: field.hint || "" };
    if (field.kind === "area") return html`<textarea ...${common}></textarea>`;
    if (field.kind === "check") return html`<input type="checkbox" name=${field.name} checked=${values[field.name] === true} onChange=${set(field.name)} />`;
    if (field.options) return html`<select name=${field.name} value=${values[field.name]} onChange=${set(field.name)}>${field.options.map((option) => html`<option>${option}</option>`)}</select>`;
    return html`<input type=${field.kind || "text"} autocomplete="off" ...${common} />`;
  };
  return html`<form class="grid" onSubmit=${submit}>
    ${fields.map((field) => html`<label class=${field.wide || field.kind === "area" ? "wide" : ""}>${field.title}${input(field)}</label>`)}
    <div class="buttons"><button class=${danger ? "bad" : "main"} disabled=${state.busy}>${action}</button>
      <span role="status">${state.error ? html`<span class="bad">${state.error.message}</span>` : state.said || ""}</span></div>
  </form>`;
}

// Something that cannot be undone: the first press asks, the second does it.
export function Danger({ text, act }) {
  const [sure, setSure] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!sure) return undefined;
    const timer = setTimeout(() => setSure(false), 5000);
    return () => clearTimeout(timer);
  }, [sure]);
  const press = async () => {
    if (!sure) { setSure(true); return; }
    setSure(false);
    try { await act(); } catch (failure) { setError(failure); }
  };
  return html`<button class="bad" onClick=${press}>${sure ? "Really?" : text}</button>${error ? html` <span class="bad">${error.message}</span>` : null}`;
}

export const Fold = ({ title, open, children }) => html`<details open=${open}><summary>${title}</summary>${children}</details>`;
