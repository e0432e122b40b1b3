// The page: where one is, who one is, and which view that is.
import { html, render, useEffect, useState } from "/assets/preact-htm.js";
import { ask, get } from "/assets/api.js";
import { Group, Groups, Topic, Topics } from "/assets/log.js";
import { Exchange, Exchanges, Queue, Queues } from "/assets/messaging.js";
import { Connections, Events, Mqtt, Overview, Users } from "/assets/broker.js";
import { go, useAddress } from "/assets/parts.js";

// Address, name, key behind `g`, who sees it, view.
const VIEWS = [
  ["", "Overview", "o", "all", Overview],
  ["topics", "Topics", "t", "all", Topics],
  ["groups", "Groups", "c", "all", Groups],
  ["queues", "Queues", "q", "all", Queues],
  ["exchanges", "Exchanges", "e", "all", Exchanges],
  ["mqtt", "MQTT", "m", "all", Mqtt],
  ["connections", "Connections", "n", "all", Connections],
  ["users", "Users", "u", "administrator", Users],
  ["events", "Events", "v", "administrator", Events],
];

function View({ address, me }) {
  const [path, search] = address.split("?");
  const parts = path.split("/").slice(1).map(decodeURIComponent);
  const given = Object.fromEntries(new URLSearchParams(search || ""));
  const [room, ...rest] = parts;
  if (room === "topics" && rest.length) return html`<${Topic} key=${address} name=${rest[0]} me=${me} given=${given} />`;
  if (room === "groups" && rest.length) return html`<${Group} key=${address} name=${rest[0]} me=${me} />`;
  if (room === "queues" && rest.length > 1) return html`<${Queue} key=${address} vhost=${rest[0]} name=${rest[1]} me=${me} />`;
  if (room === "exchanges" && rest.length > 1) return html`<${Exchange} key=${address} vhost=${rest[0]} name=${rest[1]} me=${me} />`;
  const found = VIEWS.find(([name, , , who]) => name === room && (who === "all" || me.administrator));
  if (!found) return html`<h2>Nothing here</h2><p><a href="#/">Overview</a></p>`;
  const Found = found[4];
  return html`<${Found} key=${room} me=${me} given=${given} />`;
}

function Login({ done }) {
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      await ask("POST", "/login", { user: form.get("user"), password: form.get("password") });
      done();
    } catch (failure) { setError(failure); }
  };
  return html`<main class="login"><h2>Trunkline</h2><form class="grid" onSubmit=${submit}>
    <label class="wide">User<input name="user" autocomplete="username" autofocus /></label>
    <label class="wide">Password<input name="password" type="password" autocomplete="current-password" /></label>
    <div class="buttons"><button class="main">Log in</button>${error ? html`<span class="bad" role="alert">${error.message}</span>` : null}</div></form></main>`;
}

function useKeys(me) {
  useEffect(() => {
    let waiting = 0;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /input|textarea|select/i.test(event.target.tagName)) return;
      if (event.key === "/") {
        const filter = document.querySelector("input.filter");
        if (filter) { filter.focus(); event.preventDefault(); }
      } else if (event.key === "g") {
        waiting = Date.now();
      } else if (Date.now() - waiting < 1500) {
        waiting = 0;
        const found = VIEWS.find(([, , key, who]) => key === event.key && (who === "all" || me.administrator));
        if (found) go(`/${found[0]}`);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [me]);
}

const THEMES = { "": "as the system", light: "light", dark: "dark" };

function Theme() {
  const [theme, set] = useState(localStorage.getItem("theme") || "");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }, [theme]);
  return html`<select aria-label="colours" value=${theme} onChange=${(event) => set(event.target.value)}>${Object.entries(THEMES).map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select>`;
}

function Shell({ me, leave }) {
  const address = useAddress();
  useKeys(me);
  const room = address.split("?")[0].split("/")[1] || "";
  const here = VIEWS.find(([name]) => name === room);
  useEffect(() => { document.title = here ? `${here[1]} · Trunkline` : "Trunkline"; }, [room]);
  return html`<div class="shell"><nav><h1><img src="/assets/icon.svg" alt="" />Trunkline</h1>
    <div class="links">${VIEWS.filter(([, , , who]) => who === "all" || me.administrator).map(([name, title, key]) =>
      html`<a href=${`#/${name}`} class=${name === room ? "here" : ""} title=${`g ${key}`}>${title}</a>`)}</div>
    <div class="who"><div>${me.name}</div>${me.name === "ANONYMOUS" ? null : html`<a href="#/" onClick=${leave}>Log out</a>`} <${Theme} /></div></nav>
    <main><${View} address=${address} me=${me} /></main></div>`;
}

function Page() {
  const [me, setMe] = useState(undefined);
  const enter = async () => {
    try { setMe(await get("/api/v1/whoami")); } catch { setMe(null); }
  };
  useEffect(() => { enter(); }, []);
  if (me === undefined) return null;
  if (me === null) return html`<${Login} done=${enter} />`;
  return html`<${Shell} me=${me} leave=${async (event) => { event.preventDefault(); await ask("POST", "/logout"); enter(); }} />`;
}

render(html`<${Page} />`, document.getElementById("page"));
