// What happened: epochs as a ribbon over time, and each event with what it cost, newest first.
import { h, keep } from "./dom.js";
import { live, age, on } from "./live.js";
import { facts, fact } from "./facts.js";
import { term } from "./help.js";
import { lost } from "./lost.js";
import { now } from "./net.js";
import { drainer } from "./operate.js";
import { ago, clock, count, day, duration, many } from "./format.js";
import { title, trouble } from "./words.js";

// arrivals makes one event of nodes that come together.
function arrivals(events) {
  const out = [];
  for (const e of events) {
    const last = out.at(-1);
    if (e.kind === "node_up" && last?.kind === "node_up" && Date.parse(e.at) - Date.parse(last.at) < 5000) {
      out[out.length - 1] = { ...e, node: [...last.node.split(", "), e.node].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).join(", ") };
    } else out.push(e);
  }
  return out;
}

export function faultsPage(view) {
  const totals = facts(), away = lost();
  const ribbon = h("div", { class: "ribbon", role: "img" });
  const list = h("ol", { class: "timeline", "aria-label": "Events, newest first" });
  const nodes = h("ul", { class: "nodes" }), problem = h("div", { class: "bad small", role: "status" });
  const rows = new Map(); // event id -> element, as drawn at a revision
  view.append(h("div", { class: "page faults" }, away.box,
    h("section", { class: "card wide", "aria-label": "What faults have cost" }, totals.box, h("div", { class: "cuthead" }, h("h2", {}, term("Epochs", "epoch"))), ribbon),
    h("section", { "aria-label": "Timeline" }, list),
    h("section", { class: "card side", "aria-label": "Nodes" }, h("h2", {}, "Nodes"), nodes, problem,
      h("p", { class: "dim small" }, "Draining moves a node's sequences and its share to the others while it runs; streams go on. It takes an operator's key where keys have roles."))));

  function sums() {
    const ends = live.events.filter(e => e.cost), costs = ends.map(e => e.cost), total = k => costs.reduce((t, c) => t + c[k], 0);
    const cut = total("streams"), on = total("went_on"), failed = total("failed"), longest = Math.max(0, ...costs.map(c => c.silent_ms || c.stall_ms));
    totals.draw([
      fact(term("Placements that ended", "placement"), count(ends.length), many(ends.filter(trouble).length, "by a fault", "by faults")),
      fact("Streams that went on", cut ? count(on) + " of " + count(cut) : "none was cut off", failed ? count(failed) + " failed" : cut ? "none failed" : ""),
      fact("Longest silence", longest ? duration(longest) : "none", "of stream or cluster"),
      fact("Computed again", count(total("recomputed_tokens") + total("replayed_tokens")) + " tokens", count(total("restored_caches") + total("restored_replicas")) + " caches were kept")]);
  }

  // epochs draws each epoch as long as it served, the last hour or as long as there is.
  function epochs() {
    const until = now(), starts = live.events.filter(e => e.kind === "serving" || e.cost?.next_epoch);
    if (!starts.length) { ribbon.replaceChildren(h("span", { class: "dim small" }, "No placement has served yet.")); return; }
    const spans = starts.map(e => ({ epoch: e.cost?.next_epoch || e.epoch, sockets: e.sockets, from: Date.parse(e.at) + (e.cost?.stall_ms || 0), event: e }));
    const from = Math.max(spans[0].from, until - 3600e3), all = Math.max(1, until - from), shown = [];
    spans.forEach((p, i) => {
      const next = live.events.find(e => e.cost && Date.parse(e.at) >= p.from), to = Math.min(i + 1 < spans.length ? spans[i + 1].from : until, next ? Date.parse(next.at) : until);
      if (to > from) shown.push({ ...p, from: Math.max(p.from, from), to });
    });
    ribbon.setAttribute("aria-label", "Epochs: " + shown.map(p => `${p.epoch} for ${duration(p.to - p.from)}`).join(", "));
    ribbon.replaceChildren(...shown.map(p => h("div", { class: trouble(p.event) ? "epoch hurt" : "epoch", style: { flexGrow: Math.max(.012, (p.to - p.from) / all) }, title: `epoch ${p.epoch}: ${p.sockets || "?"} sockets, served for ${duration(p.to - p.from)}` },
      h("b", {}, p.epoch), h("span", { class: "dim" }, p.sockets ? many(p.sockets, "socket") : ""))));
  }

  const figure = (value, name, cls) => h("div", { class: cls ? "figure " + cls : "figure" }, h("b", { class: "num" }, value), h("span", {}, name));

  function row(e) {
    const c = e.cost, again = c && c.recomputed_tokens + c.replayed_tokens, kept = c && c.restored_caches + c.restored_replicas;
    return h("li", { class: (trouble(e) ? "hurt" : c ? "end" : "") + (c && c.open ? " open" : ""), "data-event": e.id, "data-kind": e.kind },
      h("time", { class: "num dim", dateTime: e.at, title: e.at }, clock(e.at), h("span", {}, day(e.at))),
      h("div", { class: c ? "card what" : "what" },
        h("div", { class: "head" }, h("b", {}, title(e)), c && c.next_epoch ? h("span", { class: "chip" }, "epoch " + e.epoch + " \u2192 " + c.next_epoch) : null,
          c && c.open ? h("span", { class: "chip on" }, c.next_epoch ? "streams resume" : "placing anew") : null,
          e.reason && !["node_lost", "node_drained", "node_joined", "node_restarted"].includes(e.kind) ? h("span", { class: "dim small" }, e.reason) : null),
        c && h("div", { class: "cost" },
          figure(c.next_epoch ? duration(c.stall_ms) : "\u2026", "until the next placement served"),
          c.streams > 0 && [figure(count(c.went_on) + " of " + count(c.streams), "streams went on", c.failed ? "" : "good"), figure(duration(c.silent_ms), "longest silence of one"),
            figure(count(again), "tokens computed again"), figure(count(kept), kept === 1 ? "cache kept" : "caches kept")],
          c.failed > 0 && figure(count(c.failed), "failed", "bad"),
          !c.streams && !c.open && c.next_epoch > 0 && figure("idle", "nothing was running"))));
  }

  function events() {
    const ordered = arrivals(live.events).toReversed();
    list.replaceChildren(...(ordered.length ? ordered.map(e => {
      const at = rows.get(e.id), key = e.revision + e.node;
      if (at?.key === key) return at.box;
      const box = row(e);
      rows.set(e.id, { key, box });
      return box;
    }) : [h("li", { class: "empty" }, "Nothing has happened yet.")]));
    sums();
    epochs();
  }

  const places = new Map(); // node -> its row, which stays: a button may have the focus
  function place(id) {
    const chip = h("span"), drain = drainer(id, problem);
    drain.button.classList.add("end");
    const draw = n => {
      const gone = n.word === "gone";
      chip.className = n.word === "ready" ? "chip on" : gone ? "chip bad" : "chip";
      chip.textContent = gone ? "gone " + ago(Date.parse(n.event.at), now()) : [n.word, age()].filter(Boolean).join(" ");
      drain.draw(n);
    };
    return { box: h("li", { "data-node": id }, h("b", {}, id), chip, drain.button), draw };
  }

  function states() {
    away.draw();
    epochs();
    keep(nodes, live.nodes.map(n => {
      if (!places.has(n.id)) places.set(n.id, place(n.id));
      places.get(n.id).draw(n);
      return places.get(n.id).box;
    }));
  }

  events();
  states();
  const offs = [on("event", () => { events(); states(); }), on("state", states)];
  return () => offs.forEach(f => f());
}
