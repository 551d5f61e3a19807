// The chat: conversations at the side, turns in the middle, a box to write in.
import { h, tool, icons, copy, download, paced } from "./dom.js";
import { live, on } from "./live.js";
import { markdown } from "./markdown.js";
import { chats } from "./chats.js";
import { answer } from "./answer.js";
import { drawer, policy, asText } from "./settings.js";
import { bytes, count, duration, many, pace, percent } from "./format.js";
import { press, term, typing } from "./help.js";
import { box as commandBox, command, join } from "./join.js";
import { title, outcome } from "./words.js";

const tries = ["Write a Go function that reverses a string.", "Write a Go function that counts the words of a text.", "What is a goroutine?", "Write a Go struct for a point, with a method that gives its length."];
let running = null; // { turn, abort }: it continues while another page is shown

export function chatPage(view) {
  const side = h("aside", { class: "chats", "aria-label": "Conversations" });
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation" });
  const box = h("textarea", { id: "prompt", rows: 1, placeholder: "Ask the cluster", dir: "auto", "aria-label": "Message", autofocus: true });
  const send = h("button", { class: "main", type: "submit" }, "Send");
  const stop = h("button", { type: "button", onclick: () => { running?.abort.abort(); home(); } }, "Stop");
  const note = h("span", { class: "note", role: "status" });
  const how = h("button", { class: "chip on", type: "button", title: "The cache policy of the next answer", "aria-haspopup": "dialog", onclick: () => drawer(label, "kv_policy") });
  const seek = h("input", { type: "search", class: "seek", placeholder: "Search", "aria-label": "Search the conversations", oninput: () => list() });
  const rows = h("div", { class: "rows" }), word = h("p", { class: "dim small", role: "status" });
  const file = h("input", { type: "file", accept: ".json,application/json", class: "hidden", tabIndex: -1, "aria-label": "File of conversations", onchange: () => take() });
  side.append(h("button", { class: "new", type: "button", onclick: () => anew() }, "New chat"), seek, rows, word,
    h("div", { class: "files" }, h("button", { class: "quiet small", type: "button", onclick: () => file.click() }, "Import"),
      h("button", { class: "quiet small", type: "button", onclick: () => download("shoal-chats.json", "application/json", chats.exported(chats.find(seek.value))) }, "Export"), file));
  const form = h("form", { onsubmit: e => { e.preventDefault(); ask(); } }, h("label", { class: "hidden", for: "prompt" }, "Message"), box,
    h("div", { class: "under" }, h("span", { class: "list" }, tool("Conversations", icons.list, () => side.classList.toggle("open"))), note, how, tool("How to answer", icons.drawer, () => drawer(label)), stop, send));
  const keys = h("p", { class: "hint" }, [["Enter", "sends"], ["Shift Enter", "new line"], ["Esc", "stops"], ["?", "all keys and words"]].map(([k, what]) => h("span", {}, press(k), what)));
  view.append(h("div", { class: "chat" }, side, h("section", { class: "talk", "aria-label": "Chat" }, log, h("div", { class: "composer" }, form, keys))));

  let shown = new Map(); // turn -> element
  const home = () => matchMedia("(min-width: 44.01rem)").matches && box.focus(); // on a phone that opens the keyboard
  const label = () => { how.textContent = (asText() ? "text, " : "") + "cache policy: " + (policy() || "full").split(":")[0]; how.title = "The cache policy of the next answer: " + (policy() || "full"); };

  function list() {
    const found = chats.find(seek.value);
    rows.replaceChildren(...found.map(row));
    seek.hidden = chats.list.length < 2;
    if (!found.length && seek.value) rows.append(h("p", { class: "dim small" }, "No conversation has these words."));
  }

  const row = c => h("div", { class: c.id === chats.current.id ? "row on" : "row", "data-chat": c.id },
    h("button", { class: "open", type: "button", dir: "auto", title: c.title, onclick: () => { chats.open(c.id); side.classList.remove("open"); all(); } }, c.title),
    h("span", { class: "del" }, tool("Rename " + c.title, icons.rename, () => rename(c)),
      tool("Delete " + c.title, icons.close, () => { if (running && c.turns.includes(running.turn)) running.abort.abort(); chats.remove(c.id); all(); home(); })));

  // rename replaces the name by a field. Enter, or leaving the field, stores the new name; Escape does not.
  function rename(c) {
    const at = rows.querySelector(`[data-chat="${c.id}"] .open`);
    const field = h("input", { class: "open", dir: "auto", value: c.title, maxLength: 200, "aria-label": "Name of the conversation" });
    let over = false;
    const end = kept => {
      if (over) return;
      over = true;
      if (kept) chats.rename(c.id, field.value);
      list();
    };
    field.addEventListener("keydown", e => {
      if (e.key !== "Enter" && e.key !== "Escape" || e.isComposing) return;
      e.stopPropagation(); // Escape would also stop an answer
      end(e.key === "Enter");
      rows.querySelector(`[data-chat="${c.id}"] .open`)?.focus();
    });
    field.addEventListener("blur", () => end(true));
    at.replaceWith(field);
    field.select();
    field.focus();
  }

  async function take() {
    try {
      const n = chats.imported(await file.files[0].text());
      word.textContent = n ? many(n, "conversation") + " added." : "All of them are here already.";
    } catch (e) {
      word.textContent = e.message;
    }
    file.value = "";
    list();
  }

  function anew() {
    chats.fresh();
    side.classList.remove("open");
    all();
    box.focus();
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

  // Another machine, on the first page: what it runs to join, where the cluster can be reached.
  const more = h("div", { class: "another" });
  const another = () => {
    const run = command();
    if (more.dataset.run === run) return;
    more.dataset.run = run;
    more.replaceChildren(...(run ? [h("p", { class: "small" }, "One more machine joins with"), commandBox(run)] : []),
      h("p", { class: "small" }, run ? "" : "It runs on one machine now. ", h("button", { class: "link", type: "button", onclick: join }, run ? "What this needs" : "Add another")));
  };

  const hello = () => h("div", { class: "hello" }, h("h1", {}, "One model, on all your machines"), h("p", {}, "Pull a node's plug while it writes: the stream goes on."),
    h("div", { class: "tries" }, tries.map(t => h("button", { type: "button", onclick: () => { box.value = t; ask(); } }, t))), more);

  function element(turn) {
    const e = turn.role === "user" ? asked(turn) : h("article", { class: "turn assistant", "aria-label": "Answer" });
    shown.set(turn, e);
    newest(turn);
    if (turn.role === "assistant") fill(turn);
    return e;
  }

  const asked = turn => h("article", { class: "turn user", "aria-label": "You" }, h("div", { class: "text", dir: "auto" }, turn.content),
    h("div", { class: "tools" }, tool("Edit and ask again", icons.edit, () => edit(turn))));

  function fill(turn) {
    const e = shown.get(turn), writing = running?.turn === turn;
    if (!e) return;
    e.setAttribute("aria-busy", writing);
    const text = h("div", { class: writing ? "text caret" : "text" }, turn.form === "text" ? h("div", { class: "plain", dir: "auto" }, turn.content) : markdown(turn.content));
    e.replaceChildren(...[turn.thought && h("div", { class: "thought", dir: "auto" }, turn.thought), text, turn.outages?.map(broke), turn.error && h("div", { class: "error", role: "alert" }, turn.error), !writing && figures(turn)].flat().filter(Boolean));
  }

  const broke = o => h("div", { class: "broke", "data-event": o.id }, h("span", {}, h("b", {}, title(o) + ". "), outcome(o), " ", h("a", { href: "#faults" }, "Details")));

  function figures(turn) {
    const f = turn.figures, u = f?.usage, last = chats.current.turns.at(-1) === turn, per = f?.first ? pace(f.tokens - 1, f.seconds) : "";
    const row = [];
    if (per) row.push(h("span", {}, h("b", {}, per), " tok/s"));
    if (f?.first) row.push(h("span", {}, "first token ", h("b", {}, duration(f.first))));
    if (u) {
      const cached = u.prompt_tokens_details?.cached_tokens || 0;
      row.push(h("span", {}, h("b", {}, count(u.completion_tokens)), " tokens"), h("span", {}, "prompt ", h("b", {}, count(u.prompt_tokens)), cached ? ", " + count(cached) + " cached" : ""));
      if (u.kv_bytes_full) {
        const part = u.kv_bytes / u.kv_bytes_full;
        row.push(h("span", { class: "cache" }, term("cache", "policy"), " ", h("b", {}, bytes(u.kv_bytes)),
          h("span", { class: "meter", role: "img", "aria-label": percent(part) + " of a full cache" }, h("i", { class: "m-a", style: { width: 100 * Math.min(part, 1) + "%" } })),
          part < .995 ? ["of " + bytes(u.kv_bytes_full) + " ", term("full", "full")] : term("full", "full")));
      }
    }
    if (f?.finish === "length") row.push("cut at the limit");
    if (f?.finish === "stopped") row.push("stopped");
    return h("div", { class: "figures" }, row, h("span", { class: "tools" }, tool("Copy the answer", icons.copy, () => copy(turn.content)), last && tool("Answer again", icons.again, again)));
  }

  function busy() {
    stop.hidden = !running;
    send.disabled = Boolean(running);
    const f = running?.turn.figures, per = f?.first ? pace(f.pieces, f.seconds) : "";
    note.textContent = !running ? live.trouble : !f?.first ? "reading the prompt\u2026" : (per ? per + " tok/s, " : "") + "first token " + duration(f.first);
  }

  const changed = paced(() => {
    if (!running) return;
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    fill(running.turn);
    busy();
    if (low) log.scrollTop = log.scrollHeight;
  });

  async function run() {
    const chat = chats.current, turns = [...chat.turns], turn = { role: "assistant" };
    chat.turns.push(turn);
    running = { turn, abort: new AbortController(), changed };
    chats.answered = chat;
    chats.save();
    all();
    await answer(turns, turn, running.abort.signal, () => running?.changed());
    running = chats.answered = null;
    chats.keep(chat);
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
  function edit(turn) {
    if (running || !turn) return;
    box.value = turn.content;
    chats.current.turns.splice(chats.current.turns.indexOf(turn));
    all();
    grow();
    box.focus();
  }

  box.addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); ask(); }
    if (e.key === "ArrowUp" && !box.value && !running) { e.preventDefault(); edit(chats.current.turns.findLast(t => t.role === "user")); }
  });
  const keyed = e => {
    if (e.key === "Escape" && !e.isComposing && running && !document.querySelector("dialog[open]")) { running.abort.abort(); home(); return; }
    if (typing(e)) return;
    if (e.key === "n") anew(); else if (e.key === "s") drawer(label); else if (e.key === "/") { side.classList.add("open"); seek.hidden = false; seek.focus(); } else return;
    e.preventDefault();
  };
  document.addEventListener("keydown", keyed);
  if (running) running.changed = changed;
  const state = () => { label(); busy(); another(); };
  another();
  label();
  all();
  const offs = [on("state", state), () => document.removeEventListener("keydown", keyed), on("event", ({ event: e }) => { // a cost that becomes known after the answer
    for (const turn of shown.keys()) {
      if (turn !== running?.turn && turn.outages?.some(o => same(o, e))) { newest(turn); fill(turn); chats.keep(chats.current); }
    }
  })];
  chats.changed = current => { if (current) all(); else if (!rows.querySelector("input")) list(); };
  home();
  return () => { chats.changed = () => {}; offs.forEach(f => f()); redraw = () => {}; if (running) running.changed = () => {}; };
}

let redraw = () => {};
