// Conversations, kept in this browser and nowhere else.
const KEY = "shoal.chats", MOST = 50;

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
    this.current = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", turns: [] };
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

  remove(id) {
    this.list = this.list.filter(c => c.id !== id);
    if (this.current?.id === id) this.fresh();
    this.write();
  },

  write() {
    for (let n = this.list.length; n >= 0; n = Math.floor(n / 2)) {
      try {
        localStorage.setItem(KEY, JSON.stringify(this.list.slice(0, n)));
        return;
      } catch { /* full */ }
      if (!n) return;
    }
  },
};

chats.current = chats.list[0] || chats.fresh();
