// What the cluster is doing: its state each second, the last minutes, and its events as they
// come. Who wants to know subscribes; who looks at charts asks for the past as well.
import { get, now } from "./net.js";
import { ago } from "./format.js";

export const live = {
  cluster: null,          // GET /v1/cluster
  trouble: "",            // why nothing new is known of it
  seen: 0,                // when it was last heard of, by this machine's clock
  nodes: [],              // its nodes, and those that were lost lately: state "gone"
  samples: [],            // the last minutes
  events: [],             // oldest first
};

const hear = new EventTarget();
const keepGone = 10 * 60 * 1000;
const keepSamples = 300;

/** on calls f at each "state", "past" or "event"; what it returns ends that. */
export function on(what, f) {
  const g = e => f(e.detail);
  hear.addEventListener(what, g);
  return () => hear.removeEventListener(what, g);
}

/** age says how old what is known is, while nothing new is heard: "12 s ago", else "". */
export const age = () => live.trouble && live.seen ? ago(live.seen, Date.now()) : "";

const tell = (what, detail) => hear.dispatchEvent(new CustomEvent(what, { detail }));

async function look() {
  try {
    const c = await get("/v1/cluster", 5000);
    live.cluster = c;
    live.trouble = "";
    live.seen = Date.now();
    gather();
    await past();
  } catch (e) {
    live.trouble = e.message;
  }
  tell("state");
  setTimeout(look, document.hidden ? 5000 : 1000);
}

async function past() {
  const all = live.samples, next = all.length ? all[all.length - 1].index + 1 : 0;
  try {
    const fresh = (await get("/v1/cluster/history?from=" + next)).data;
    if (fresh.length && fresh[0].index < next) all.length = 0; // another coordinator
    all.push(...fresh);
    all.splice(0, all.length - keepSamples);
    tell("past");
  } catch (e) {
    if (e.status !== 404) throw e; // an embedding may not keep it
  }
}

// gather adds the nodes that are gone to those that are here, in the order of their names.
function gather() {
  const nodes = live.cluster.nodes.map(n => ({ ...n, word: n.state.split(":")[0] }));
  const here = new Set(nodes.map(n => n.id)), fate = new Map();
  for (const e of live.events) {
    if (e.node && (e.kind === "node_lost" || e.kind === "node_up")) fate.set(e.node, e);
  }
  for (const [id, e] of fate) {
    if (!here.has(id) && e.kind === "node_lost" && now() - Date.parse(e.at) < keepGone) nodes.push({ id, word: "gone", state: "gone", share: 0, event: e });
  }
  live.nodes = nodes.sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
}

let source = null, revision = 0;

function listen() {
  source = new EventSource("/v1/events?from=" + revision);
  source.onmessage = m => {
    const e = JSON.parse(m.data);
    if (e.revision <= revision) live.events = []; // a log that begins anew
    revision = e.revision;
    const at = live.events.findIndex(x => x.id === e.id), fresh = at < 0;
    if (fresh) live.events.push(e); else live.events[at] = e;
    live.events.sort((a, b) => a.id - b.id); // they come by their newest change
    live.events.splice(0, live.events.length - 256);
    if (live.cluster) gather();
    tell("event", { event: e, fresh });
  };
  source.onerror = () => {
    if (source && source.readyState === EventSource.CLOSED) { // refused, as by a standby
      source = null;
      setTimeout(() => document.hidden || source || listen(), 3000);
    }
  };
}

export function start() {
  look();
  listen();
  document.addEventListener("visibilitychange", () => { // browsers open few connections to one server
    if (document.hidden) { source?.close(); source = null; } else if (!source) listen();
  });
}
