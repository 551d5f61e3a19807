// The chat: conversations at the side, turns in the middle, a box to write in.
import { h, tool, icons, copy } from "./dom.js";
import { live, on } from "./live.js";
import { markdown } from "./markdown.js";
import { chats } from "./chats.js";
import { answer } from "./answer.js";
import { drawer, policy, asText } from "./settings.js";
import { bytes, count, duration, percent, rate } from "./format.js";
import { title, outcome } from "./words.js";

const tries = ["Write a Go function that reverses a string.", "Write a Go function that counts the words of a text.", "What is a goroutine?", "Write a Go struct for a point, with a method that gives its length."];
let running = null; // { turn, abort }: it goes on while another page is shown

export function chatPage(view) {
  const side = h("aside", { class: "chats", "aria-label": "Conversations" });
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation" });
  const box = h("textarea", { id: "prompt", rows: 1, placeholder: "Ask the cluster", "aria-label": "Message", autofocus: true });
  const send = h("button", { class: "main", type: "submit" }, "Send");
  const stop = h("button", { type: "button", onclick: () => { running?.abort.abort(); home(); } }, "Stop");
  const note = h("span", { class: "note", role: "status" });
  const how = h("button", { class: "chip on", type: "button", title: "Cache policy and sampling", "aria-haspopup": "dialog", onclick: () => drawer(label) });
  const form = h("form", { onsubmit: e => { e.preventDefault(); ask(); } }, h("label", { class: "hidden", for: "prompt" }, "Message"), box,
    h("div", { class: "under" }, h("span", { class: "list" }, tool("Conversations", icons.list, () => side.classList.toggle("open"))), note, how, tool("How to answer", icons.drawer, () => drawer(label)), stop, send));
  view.append(h("div", { class: "chat" }, side, h("section", { class: "talk", "aria-label": "Chat" }, log, h("div", { class: "composer" }, form))));

  let shown = new Map(); // turn -> element
  const home = () => matchMedia("(min-width: 44.01rem)").matches && box.focus(); // on a phone that opens the keyboard
  const label = () => { how.textContent = asText() ? "text" : policy() || "policy"; };

  function list() {
    side.replaceChildren(h("button", { class: "new", type: "button", onclick: () => { chats.fresh(); all(); box.focus(); } }, "New chat"),
      ...chats.list.map(c => h("div", { class: c.id === chats.current.id ? "row on" : "row" },
        h("button", { class: "open", type: "button", title: c.title, onclick: () => { chats.open(c.id); side.classList.remove("open"); all(); } }, c.title),
        h("span", { class: "del" }, tool("Delete " + c.title, icons.close, () => { if (running && c.turns.includes(running.turn)) running.abort.abort(); chats.remove(c.id); all(); home(); })))));
  }

  function all() {
    shown = new Map();
    const turns = chats.current.turns;
    log.replaceChildren(...(turns.length ? turns.map(element) : [hello()]));
    list();
    busy();
    log.scrollTop = log.scrollHeight;
  }

  // newest takes the last word on the faults that an answer lived through: the page of the chat
  // may not have been open when it came.
  const same = (o, e) => o.id === e.id && o.at === e.at;
  const newest = turn => { turn.outages = turn.outages?.map(o => live.events.find(e => same(o, e)) || o); };

  const hello = () => h("div", { class: "hello" }, h("h1", {}, "One model, on all your machines"), h("p", {}, "Pull a node's plug while it writes: the stream goes on."),
    h("div", { class: "tries" }, tries.map(t => h("button", { type: "button", onclick: () => { box.value = t; ask(); } }, t))));

  function element(turn) {
    const e = turn.role === "user" ? asked(turn) : h("article", { class: "turn assistant", "aria-label": "Answer" });
    shown.set(turn, e);
    newest(turn);
    if (turn.role === "assistant") fill(turn);
    return e;
  }

  const asked = turn => h("article", { class: "turn user", "aria-label": "You" }, h("div", { class: "text" }, turn.content),
    h("div", { class: "tools" }, tool("Edit and ask again", icons.edit, () => {
      if (running) return;
      box.value = turn.content;
      chats.current.turns.splice(chats.current.turns.indexOf(turn));
      all();
      grow();
      box.focus();
    })));

  function fill(turn) {
    const e = shown.get(turn), writing = running?.turn === turn;
    if (!e) return;
    e.setAttribute("aria-busy", writing);
    const text = h("div", { class: writing ? "text caret" : "text" }, turn.form === "text" ? h("div", { class: "plain" }, turn.content) : markdown(turn.content));
    e.replaceChildren(...[turn.thought && h("div", { class: "thought" }, turn.thought), text, turn.outages?.map(broke), turn.error && h("div", { class: "error", role: "alert" }, turn.error), !writing && figures(turn)].flat().filter(Boolean));
  }

  const broke = o => h("div", { class: "broke", "data-event": o.id }, h("span", {}, h("b", {}, title(o) + ". "), outcome(o), " ", h("a", { href: "#faults" }, "Details")));

  function figures(turn) {
    const f = turn.figures, u = f?.usage, last = chats.current.turns.at(-1) === turn;
    const row = [];
    if (f?.first) row.push(h("span", {}, h("b", {}, rate(f.tokens > 1 && f.seconds > 0 ? (f.tokens - 1) / f.seconds : 0)), " tok/s"), h("span", {}, "first token ", h("b", {}, duration(f.first))));
    if (u) {
      const cached = u.prompt_tokens_details?.cached_tokens || 0;
      row.push(h("span", {}, h("b", {}, count(u.completion_tokens)), " tokens"), h("span", {}, "prompt ", h("b", {}, count(u.prompt_tokens)), cached ? ", " + count(cached) + " cached" : ""));
      if (u.kv_bytes_full) {
        const part = u.kv_bytes / u.kv_bytes_full;
        row.push(h("span", { class: "cache", title: "What the cache of this answer took at its end, beside a full cache's" }, "cache ", h("b", {}, bytes(u.kv_bytes)),
          h("span", { class: "meter", role: "img", "aria-label": percent(part) + " of a full cache" }, h("i", { class: "m-a", style: { width: 100 * Math.min(part, 1) + "%" } })),
          part < .995 ? "of " + bytes(u.kv_bytes_full) + " full" : "full"));
      }
    }
    if (f?.finish === "length") row.push("cut at the limit");
    if (f?.finish === "stopped") row.push("stopped");
    return h("div", { class: "figures" }, row, h("span", { class: "tools" }, tool("Copy the answer", icons.copy, () => copy(turn.content)), last && tool("Answer again", icons.again, again)));
  }

  function busy() {
    stop.hidden = !running;
    send.disabled = Boolean(running);
    const f = running?.turn.figures;
    note.textContent = !running ? "" : !f?.first ? "reading the prompt\u2026" : rate(f.seconds > 0 ? f.pieces / f.seconds : 0) + " tok/s, first token " + duration(f.first);
  }

  let due = 0;
  function changed() { // at most once a frame
    due ||= requestAnimationFrame(() => {
      due = 0;
      if (!running) return;
      const low = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      fill(running.turn);
      busy();
      if (low) log.scrollTop = log.scrollHeight;
    });
  }

  async function run() {
    const chat = chats.current, turns = [...chat.turns], turn = { role: "assistant" };
    chat.turns.push(turn);
    running = { turn, abort: new AbortController(), changed };
    chats.save();
    all();
    await answer(turns, turn, running.abort.signal, () => running?.changed());
    running = null;
    chats.write();
    redraw(turn);
  }

  function ask() {
    const text = box.value.trim();
    if (!text || running) return;
    box.value = "";
    grow();
    chats.current.turns.push({ role: "user", content: text });
    run();
  }

  function again() {
    const turns = chats.current.turns;
    if (running || turns.at(-1)?.role !== "assistant") return;
    turns.pop();
    run();
    home(); // the button that was pressed is no more
  }

  redraw = turn => { if (shown.has(turn)) fill(turn); list(); busy(); };
  const grow = () => { box.style.height = "auto"; box.style.height = Math.min(box.scrollHeight, 224) + "px"; };
  box.addEventListener("input", grow);
  box.addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); ask(); }
  });
  if (running) running.changed = changed;
  label();
  all();
  const offs = [on("state", label), on("event", ({ event: e }) => { // a cost that becomes known after the answer
    for (const turn of shown.keys()) {
      if (turn !== running?.turn && turn.outages?.some(o => same(o, e))) { newest(turn); fill(turn); chats.write(); }
    }
  })];
  home();
  return () => { offs.forEach(f => f()); redraw = () => {}; if (running) running.changed = () => {}; };
}

let redraw = () => {};
