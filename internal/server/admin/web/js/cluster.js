// Who holds what: the model cut over the sockets, what each has in memory, the sequences that it
// owns, and the last minutes.
import { h } from "./dom.js";
import { live, age, on } from "./live.js";
import { chart } from "./chart.js";
import { facts, fact } from "./facts.js";
import { term } from "./help.js";
import { join } from "./join.js";
import { lost } from "./lost.js";
import { socket } from "./socket.js";
import { bytes, count, percent, rate, many, duration } from "./format.js";

const sum = (p, k) => Object.values(p.nodes).reduce((t, n) => t + n[k], 0);
const wire = (p, before) => before && p.wire_bytes >= before.wire_bytes ? (p.wire_bytes - before.wire_bytes) / Math.max(1, p.index - before.index) : 0;

export function clusterPage(view) {
  const charts = [
    chart("Tokens a second", [{ name: "tokens/s", value: p => p.tokens_per_second, cls: "a" }], rate),
    chart("Sequences in the batch", [{ name: "waiting too", value: p => p.running + p.waiting, cls: "b" }, { name: "running", value: p => p.running, cls: "a" }], count,
      { least: 4, beside: ([all, run]) => all > run ? ", " + count(all - run) + " wait" : "" }),
    chart("Caches of the batch", [{ name: "as full caches", value: p => p.kv_bytes_full, cls: "b" }, { name: "held", value: p => p.kv_bytes, cls: "a" }], bytes,
      { least: 1 << 20, beside: ([full, held]) => full > held * 1.005 ? ", " + percent(held / full) + " of full ones" : "" }),
    chart("Process memory", [{ name: "all processes", value: p => sum(p, 3), cls: "b" }, { name: "weights and caches", value: p => sum(p, 0) + sum(p, 1) + sum(p, 2), cls: "a" }], bytes,
      { main: 0 }),
    chart("Between the nodes", [{ name: "bytes/s", value: wire, cls: "a" }], v => bytes(v) + "/s", { least: 1024 }),
    chart("One step", [{ name: "step", value: p => p.step_ms, cls: "a" }], duration, { least: 5 }),
  ];
  const head = facts(), gone = lost();
  const waits = h("p", { class: "dim small", hidden: true });
  const cut = h("div", { class: "cutbar", role: "img" });
  const title = h("h2", {});
  const sockets = h("ul", { class: "sockets", "aria-label": "Sockets" });
  const cards = new Map(); // id -> socket
  view.append(h("div", { class: "page" }, gone.box,
    h("section", { class: "card", "aria-label": "The cluster" }, head.box, waits,
      h("div", { class: "cuthead head" }, title, h("button", { class: "quiet small end", type: "button", onclick: join }, "Add a machine")), cut),
    sockets, h("section", { class: "charts", "aria-label": "The last five minutes" }, charts.map(c => c.box))));

  function state() {
    const c = live.cluster;
    gone.draw();
    if (!c) return;
    const used = c.nodes.reduce((t, n) => t + n.kv_used_bytes + n.kv_prefix_bytes, 0), budget = c.nodes.reduce((t, n) => t + n.kv_budget_bytes, 0);
    const several = c.models || [], p = several.length ? null : c.prefix_cache, d = several.length ? null : c.speculation;
    title.replaceChildren(several.length ? count(several.length) + " models, each cut over the " : "One model, cut over the ", term("sockets", "socket"));
    const idle = live.trouble ? "as of " + age() : c.step_ms ? "step " + duration(c.step_ms) : "idle";
    const models = several.length ? several.map(m => fact("Model", m.model, [count(m.running) + " running, caches " + bytes(m.kv_used_bytes + m.kv_prefix_bytes) + " of " + bytes(m.kv_budget_bytes)], m.kv_policy)) :
      [fact("Model", c.model, c.kv_policy && [term("policy", "policy"), " " + c.kv_policy], c.kv_policy)];
    head.draw([...models, fact(term("Epoch", "epoch"), c.epoch, c.mapping && [term("mapping", "mapping"), " " + c.mapping]),
      fact(term("Tokens a second", "tokens"), live.trouble ? "\u2013" : rate(c.tokens_per_second), idle),
      fact("Running", count(c.running), c.waiting ? count(c.waiting) + " wait" : "none waits"),
      fact(term("Caches", "caches"), bytes(used), "of " + bytes(budget)),
      p && fact(term("Prefix cache", "prefix"), p.queries ? percent(p.hits / p.queries) + " found" : "empty", count(p.tokens) + " tokens kept"),
      p?.disk && fact("Prefix files", bytes(p.disk.bytes), "of " + bytes(p.disk.limit_bytes), "of " + bytes(p.disk.limit_bytes) + ", " + count(p.disk.blocks) + " blocks"),
      d && d.draft_tokens > 0 && fact(term("Drafts", "drafts"), percent(d.accepted_tokens / d.draft_tokens) + " right", count(d.draft_tokens) + " tried"),
      c.transfers && fact("Transfers", count(c.transfers.caches), bytes(c.transfers.bytes) + " from prefill nodes"),
      c.store && fact(term("Store", "store"), c.store.durability, c.store.trouble || (c.store.durability === "single" ? "one copy, one disk" : c.store.replicas + " of " + c.store.wanted + " copies"))]);
    const more = [c.waiting && c.waiting_reason && "The first request waits: " + c.waiting_reason + ".", c.store?.trouble && "Store: " + c.store.trouble].filter(Boolean);
    waits.hidden = !more.length;
    waits.textContent = more.join(" ");
    const parts = live.nodes.filter(n => n.share > 0);
    cut.setAttribute("aria-label", "Shares of the weights: " + parts.map(n => n.id + " " + percent(n.share)).join(", "));
    cut.replaceChildren(...parts.map(n => h("div", { class: n.word === "ready" ? "slice" : "slice wait", style: { flexGrow: n.share }, title: n.id + ": " + percent(n.share) + " of the weights, " + bytes(n.weight_bytes || 0) },
      h("b", {}, n.id), h("span", { class: "num" }, percent(n.share)))));
    sockets.classList.toggle("many", live.nodes.length > 8);
    const here = new Set(live.nodes.map(n => n.id));
    for (const [id, card] of cards) if (!here.has(id)) { card.box.remove(); cards.delete(id); }
    live.nodes.forEach((n, i) => {
      if (!cards.has(n.id)) cards.set(n.id, socket(n.id));
      const card = cards.get(n.id);
      card.draw(n, c.sequences.filter(q => q.node === n.id), c.load_seconds);
      if (sockets.children[i] !== card.box) sockets.insertBefore(card.box, sockets.children[i] || null);
    });
    sockets.setAttribute("aria-label", many(live.nodes.length, "socket"));
  }

  const past = () => charts.forEach(c => c.draw(live.samples));
  state();
  past();
  const offs = [on("state", state), on("event", state), on("past", past)];
  return () => offs.forEach(f => f());
}
