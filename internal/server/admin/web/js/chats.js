// Conversations, kept in this browser and nowhere else, unless they are exported. Several tabs keep them
// together: each reads what the others have written before it writes.
import { store, stored } from "./dom.js";

const KEY = "shoal.chats", MOST = 200;
const FORMAT = "shoal-chats";

const fresh = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", turns: [], at: 0 });

function load() {
  try {
    const list = JSON.parse(stored(KEY) || "[]");
    return Array.isArray(list) ? list.filter(c => c && Array.isArray(c.turns)) : [];
  } catch { return []; }
}

const ids = list => new Set(list.map(c => c.id));
const first = load();
let known = ids(first); // of the conversations that were stored when this tab last read or wrote them

export const chats = {
  list: first, // newest first
  current: null,
  answered: null,    // the one that is answered in this tab
  changed: () => {}, // called when another tab has changed the list; true: the current one too

  /** pull takes over what other tabs have added, changed (the newest change of a conversation counts) and removed.
      It returns whether they have changed the current one. */
  pull() {
    const stored = new Map(load().map(c => [c.id, c])), here = ids(this.list);
    const list = this.list.filter(c => stored.has(c.id) || !known.has(c.id));
    const newer = list.filter(c => c !== this.answered && (stored.get(c.id)?.at || 0) > (c.at || 0));
    for (const c of newer) Object.assign(c, stored.get(c.id));
    this.list = [...[...stored.values()].filter(c => !here.has(c.id) && !known.has(c.id)), ...list];
    known = new Set(stored.keys());
    return newer.includes(this.current);
  },

  /** keep stores a conversation that has changed, if it is not deleted. */
  keep(c) {
    c.at = Date.now();
    this.pull();
    this.write();
  },

  fresh() {
    this.current = fresh();
    return this.current;
  },

  open(id) { this.current = this.list.find(c => c.id === id) || this.fresh(); },

  /** save puts the current one first; the oldest go when there is no room. */
  save() {
    const c = this.current;
    if (!c.turns.length) return;
    c.title ||= c.turns[0].content.trim().slice(0, 60);
    c.at = Date.now();
    this.pull();
    this.list = [c, ...this.list.filter(x => x !== c && x.id !== c.id)].slice(0, MOST);
    this.write();
  },

  rename(id, title) {
    this.pull();
    const c = this.list.find(x => x.id === id);
    if (c && title.trim()) Object.assign(c, { title: title.trim().slice(0, 200), at: Date.now() });
    this.write();
  },

  /** find lists the conversations that hold all of the words, in their title or what was said. */
  find(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return this.list;
    return this.list.filter(c => {
      const all = [c.title, ...c.turns.map(t => t.content)].join("\n").toLowerCase();
      return words.every(w => all.includes(w));
    });
  },

  /** exported is a file of conversations, which imported reads. */
  exported: list => JSON.stringify({ format: FORMAT, version: 1, chats: list.map(c => ({ title: c.title, turns: c.turns.map(t => ({ role: t.role, content: t.content, thought: t.thought || undefined, form: t.form })) })) }, null, 1),

  /** imported adds the conversations of a file that are not here yet, and gives their number. */
  imported(text) {
    let file = null;
    try { file = JSON.parse(text); } catch { /* said below */ }
    if (file?.format !== FORMAT || !Array.isArray(file.chats)) throw new Error("This file holds no conversations: choose one that was exported here.");
    this.pull();
    const said = c => JSON.stringify(c.turns.map(t => [t.role, t.content]));
    const here = new Set(this.list.map(said)), add = [];
    for (const c of file.chats) {
      const turns = (Array.isArray(c?.turns) ? c.turns : []).filter(t => (t?.role === "user" || t?.role === "assistant") && typeof t.content === "string")
        .map(t => ({ role: t.role, content: t.content, thought: typeof t.thought === "string" ? t.thought : "", form: t.form === "text" ? "text" : "chat", done: true }));
      const made = { ...fresh(), title: String(c?.title || turns[0]?.content || "").trim().slice(0, 200), turns };
      if (!turns.length || here.has(said(made))) continue;
      here.add(said(made));
      add.push(made);
    }
    if (this.list.length + add.length > MOST) throw new Error(`That would be ${this.list.length + add.length} conversations, and this browser keeps ${MOST}: delete some first.`);
    const before = this.list;
    this.list = [...before, ...add];
    if (!this.write()) {
      this.list = before;
      this.write();
      throw new Error("This browser has no room for them: delete some conversations first.");
    }
    return add.length;
  },

  remove(id) {
    this.pull();
    this.list = this.list.filter(c => c.id !== id);
    if (this.current?.id === id) this.fresh();
    this.write();
  },

  /** write keeps the list; false: not all of it had room. */
  write() {
    const fits = n => store(KEY, JSON.stringify(this.list.slice(0, n)));
    let least = 0, most = this.list.length, n = most;
    while (least < most) { // the largest number of them that has room
      if (fits(n)) least = n; else most = n - 1;
      n = Math.ceil((least + most) / 2);
    }
    if (!least) fits(0);
    known = ids(this.list.slice(0, least));
    return least === this.list.length;
  },
};

chats.current = chats.list[0] || chats.fresh();

addEventListener("storage", e => { // of another tab
  if (e.key !== KEY && e.key !== null) return;
  chats.changed(chats.pull());
});
