// One socket: its share, its memory, its sequences, and the buttons that drain it.
import { h } from "./dom.js";
import { age } from "./live.js";
import { now } from "./net.js";
import { drainer } from "./operate.js";
import { ago, bytes, count, duration, percent } from "./format.js";

const SHOWN = 5;

/** socket makes the card of a node; draw brings it up to date. */
export function socket(id) {
  const state = h("span", { class: "state" }), room = h("span", { class: "end num dim small room" });
  const memory = h("div", { class: "meter tall", role: "img" }), held = h("div", { class: "legend num" });
  const list = h("ul", { class: "seqs", "aria-label": "Sequences" }), foot = h("span", { class: "dim small num share" });
  const problem = h("div", { class: "bad small", role: "status" });
  const drain = drainer(id, problem);
  const box = h("li", { class: "card socket", "data-node": id },
    h("div", { class: "head" }, h("h3", { title: id }, id), state, room), memory, held, list, h("div", { class: "foot" }, foot, drain.button), problem);

  function draw(n, sequences, seconds) {
    const gone = n.word === "gone";
    box.className = "card socket " + ({ ready: "", gone: "gone", fenced: "warn", unreachable: "warn", refused: "warn" }[n.word] ?? "wait");
    state.textContent = n.word === "loading" && n.load_bytes ? "loading " + percent(n.loaded_bytes / n.load_bytes) + (seconds ? ", " + duration(1000 * seconds) : "") : n.word;
    if (age() && !gone) state.textContent += " " + age();
    if (n.role === "prefill" || n.role === "decode") state.textContent += ", " + n.role;
    room.textContent = gone ? "" : bytes(n.kv_used_bytes + n.kv_prefix_bytes) + " of " + bytes(n.kv_budget_bytes);
    room.title = "caches, of what they may take";
    drain.draw(n);
    memory.hidden = gone;
    if (gone) {
      memory.setAttribute("aria-label", "gone");
      held.replaceChildren("lost " + ago(Date.parse(n.event.at), now()));
      const c = n.event.cost;
      list.replaceChildren(...(c && c.streams ? [h("li", { class: "lost" }, count(c.went_on) + " of " + count(c.streams) + " streams went on"), h("li", { class: "lost" }, "silent for " + duration(c.silent_ms || c.stall_ms)),
        h("li", { class: "lost" }, count(c.recomputed_tokens + c.replayed_tokens) + " tokens computed again")] : []));
      foot.textContent = "";
      return;
    }
    const of = Math.max(1, n.kv_budget_bytes), own = Math.max(0, n.kv_used_bytes - n.kv_replica_bytes);
    const part = (cls, v) => h("i", { class: cls, style: { width: (v ? Math.max(1, 100 * v / of) : 0) + "%" } });
    memory.replaceChildren(part("m-a", own), part("m-b", n.kv_replica_bytes), part("m-c", n.kv_prefix_bytes));
    const words = [[own, "held", "m-a"], [n.kv_replica_bytes, "copies", "m-b"], [n.kv_prefix_bytes, "prefixes", "m-c"]];
    held.replaceChildren(...words.filter(([v], i) => v > 0 || i === 0).map(([v, name, cls]) => h("span", {}, h("i", { class: "dot " + cls }), bytes(v) + " " + name)));
    memory.setAttribute("aria-label", "Cache memory: " + words.map(([v, name]) => bytes(v) + " " + name).join(", ") + ", of " + bytes(n.kv_budget_bytes));
    const most = Math.max(1, ...sequences.map(q => q.kv_bytes_full));
    const rows = sequences.slice(0, SHOWN).map(q => h("li", { title: `${q.state}: ${count(q.prompt_tokens)} prompt tokens, ${count(q.output_tokens)} written; cache ${bytes(q.kv_bytes)}, a full one ${bytes(q.kv_bytes_full)}` + (q.replica ? "; a copy on " + q.replica : "") + (q.cut ? "; cut over all nodes" : "") },
      h("span", { class: "track" }, h("i", { class: "full", style: { width: 100 * q.kv_bytes_full / most + "%" } }), h("i", { class: q.state === "prefill" ? "is reading" : "is", style: { width: 100 * Math.min(q.kv_bytes, most) / most + "%" } })),
      h("span", { class: "num" }, count(q.prompt_tokens + q.output_tokens))));
    if (sequences.length > SHOWN) rows.push(h("li", { class: "more" }, "and " + count(sequences.length - SHOWN) + " more"));
    if (!rows.length) rows.push(h("li", { class: "more" }, n.reason || n.state.replace(/^refused: /, "").replace(/^ready$/, "no sequence")));
    list.replaceChildren(...rows);
    foot.replaceChildren(n.share ? percent(n.share) : "no share", h("span", { class: "wide" }, (n.share ? " of weights" : "") + (n.pid ? " \u00b7 pid " + n.pid : "")));
    foot.title = [n.weight_bytes && bytes(n.weight_bytes) + " of weights", n.rss_bytes && bytes(n.rss_bytes) + " of memory in its process", n.device && n.device + ": " + bytes(n.device_used_bytes || 0) + " of " + bytes(n.device_memory_bytes) + " in use"].filter(Boolean).join(", ");
  }

  return { box, draw };
}
