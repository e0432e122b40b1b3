// The broker's HTTP API: requests, errors in words, and what is asked again and again while a view is open.
import { useEffect, useRef, useState } from "/assets/preact-htm.js";

export class Failure extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

export async function ask(method, path, body) {
  const options = { method, headers: { "x-requested-with": "page" }, cache: "no-store" };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Failure(0, "The broker does not answer.");
  }
  const kind = answer.headers.get("content-type") || "";
  const value = kind.startsWith("application/json") ? await answer.json() : await answer.text();
  if (!answer.ok) throw new Failure(answer.status, (value && value.reason) || answer.statusText);
  return value;
}

export const get = (path) => ask("GET", path);
export const segment = encodeURIComponent;
export const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? "?" + given.map(([name, value]) => `${segment(name)}=${segment(value)}`).join("&") : "";
};

// The answer to a path, asked again every `ms`; `reload` asks at once. An answer that comes after the view has moved on is dropped.
export function useAnswer(path, ms = 0) {
  const [state, setState] = useState({ value: null, error: null, path: null });
  const again = useRef(() => {});
  useEffect(() => {
    let open = true, timer = 0;
    const load = async () => {
      clearTimeout(timer);
      if (path) {
        try {
          const value = await get(path);
          if (open) setState({ value, error: null, path });
        } catch (error) {
          if (open) setState((before) => ({ value: before.path === path ? before.value : null, error, path }));
        }
      }
      if (open && ms) timer = setTimeout(load, document.hidden ? ms * 5 : ms);
    };
    again.current = load;
    load();
    return () => { open = false; clearTimeout(timer); };
  }, [path, ms]);
  const current = state.path === path;
  return { value: current ? state.value : null, error: current ? state.error : null, reload: () => again.current() };
}
