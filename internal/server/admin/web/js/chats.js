// Conversations, kept in this browser and nowhere else, unless they are exported.
const KEY = "shoal.chats", MOST = 200;
const FORMAT = "shoal-chats";

const fresh = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", turns: [] });

function load() {
  try {
    const list = JSON.parse(localStorage.getItem(KEY) || "[]");
    return Array.isArray(list) ? list.filter(c => c && Array.isArray(c.turns)) : [];
  } catch { return []; }
}

export const chats = {
  list: load(), // newest first
  current: null,

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
    this.list = [c, ...this.list.filter(x => x !== c && x.id !== c.id)].slice(0, MOST);
    this.write();
  },

  rename(id, title) {
    const c = this.list.find(x => x.id === id);
    if (c && title.trim()) c.title = title.trim().slice(0, 200);
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
    this.list = this.list.filter(c => c.id !== id);
    if (this.current?.id === id) this.fresh();
    this.write();
  },

  /** write keeps the list; false: not all of it had room. */
  write() {
    for (let n = this.list.length; n >= 0; n = Math.floor(n / 2)) {
      try {
        localStorage.setItem(KEY, JSON.stringify(this.list.slice(0, n)));
        return n === this.list.length;
      } catch { /* full */ }
      if (!n) return false;
    }
  },
};

chats.current = chats.list[0] || chats.fresh();
