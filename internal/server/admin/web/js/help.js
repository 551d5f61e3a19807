// What words mean, and which keys do what. A term is a button: its meaning shows under the
// pointer, when the keyboard reaches it, and on a press, which is what a phone has.
import { h, tool, icons } from "./dom.js";

const meanings = {
  epoch: ["Epoch", "The number of the placement, which says what each node holds. It grows whenever a node comes, goes or takes another share. Answers under way continue across it."],
  placement: ["Placement", "Who holds which part of the model. It ends when a node is lost, joins, is drained or restarts, or when a step fails. The next one follows within seconds, and streams continue in it."],
  mapping: ["Mapping", "How attention is cut over the sockets. Gather cuts all weights and takes the least memory. Reduce keeps the attention weights whole on each socket and synchronises less often. The planner measures and chooses; answers are the same bits."],
  socket: ["Socket", "One node's place in the group that computes the model together. It holds its share of the weights and the caches of its own sequences."],
  store: ["Store", "Where jobs, batches and the placement are written down. Single is one copy on one disk. Replicated is three copies on three machines, of which two must be there."],
  tokens: ["Tokens a second", "Prompt tokens read and tokens generated in the last second, for all requests together. 0 when idle."],
  caches: ["Caches", "Memory for the keys and values of running sequences, copies of them, and the prefix cache, of what all nodes may take."],
  prefix: ["Prefix cache", "What earlier prompts and answers left in memory. A prompt that begins alike is not read again. It gives way when sequences need the memory."],
  drafts: ["Drafts", "Tokens that were guessed ahead and checked by the model. A right guess saves a step; a wrong one changes nothing in the answer."],
  policy: ["Cache policy", "Which tokens stay in the KV cache. Full keeps every token. The others keep fewer, which leaves room for more sequences and may change answers."],
  full: ["A full cache", "One that keeps every token of the prompt and the answer. The bar compares the cache of this answer with it."],
};

/** term is a word whose meaning can be asked for. */
export const term = (text, key) => h("button", { class: "term", type: "button", "data-term": key, "aria-describedby": "tip" }, text);

const tip = h("div", { id: "tip", role: "tooltip", popover: "manual" });
let shown = null, pinned = false, soon = 0;

function show(at) {
  const [title, text] = meanings[at.dataset.term] || [];
  if (!title) return;
  shown = at;
  tip.replaceChildren(h("b", {}, title), text);
  // A dialog makes what is behind it inert: the meaning of its words belongs inside.
  (at.closest("dialog") || document.body).append(tip);
  tip.showPopover();
  const r = at.getBoundingClientRect(), width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = Math.max(8, Math.min(r.left, innerWidth - width - 8)) + "px";
  tip.style.top = (r.bottom + 8 + height > innerHeight ? Math.max(8, r.top - height - 8) : r.bottom + 8) + "px";
}

function hide() {
  clearTimeout(soon);
  if (tip.matches(":popover-open")) tip.hidePopover();
  shown = null;
  pinned = false;
}

const termOf = e => e.target instanceof Element ? e.target.closest("[data-term]") : null;
document.body.append(tip);
document.addEventListener("pointerover", e => {
  const at = termOf(e);
  if (!at || e.pointerType !== "mouse" || pinned) return;
  clearTimeout(soon);
  soon = setTimeout(() => show(at), 120);
});
document.addEventListener("pointerout", e => { if (termOf(e) && !pinned) hide(); });
document.addEventListener("focusin", e => {
  const at = termOf(e);
  if (at?.matches(":focus-visible")) show(at);
});
document.addEventListener("focusout", e => { if (termOf(e)) hide(); });
document.addEventListener("click", e => {
  const at = termOf(e);
  if (!at || (pinned && shown === at)) { hide(); return; }
  show(at);
  pinned = true;
});
document.addEventListener("keydown", e => {
  if (e.key === "Escape" && shown) { e.preventDefault(); e.stopPropagation(); hide(); }
}, true);
addEventListener("scroll", hide, true);
addEventListener("hashchange", hide);

const keys = [
  ["1 2 3 4", "Chat, Cluster, Faults, Jobs"],
  ["Enter", "Send the message"],
  ["Shift Enter", "Begin a new line"],
  ["Esc", "Stop the answer"],
  ["\u2191", "Edit the last question, in an empty box"],
  ["n", "New chat"],
  ["/", "Search the conversations"],
  ["s", "How to answer"],
  ["?", "This help"],
];

/** press draws the keys of a shortcut. */
export const press = text => text.split(" ").map(k => h("kbd", {}, k));

/** help opens the list of keys and words. */
export function help() {
  const box = h("dialog", { class: "card help", "aria-labelledby": "help-title", onclose: () => box.remove(), onclick: e => { if (e.target === box) box.close(); } },
    h("div", { class: "head" }, h("h1", { id: "help-title" }, "Keys and words"), h("span", { class: "end" }, tool("Close", icons.close, () => box.close()))),
    h("dl", { class: "keys" }, keys.map(([k, what]) => h("div", {}, h("dt", {}, press(k)), h("dd", {}, what)))),
    h("dl", { class: "words" }, Object.values(meanings).map(([word, text]) => h("div", {}, h("dt", {}, word), h("dd", {}, text)))));
  document.body.append(box);
  box.showModal();
}

/** typing tells that a key belongs to a field or a dialog, not to the page. */
export const typing = e => e.ctrlKey || e.metaKey || e.altKey || e.isComposing || document.querySelector("dialog[open]") !== null ||
  e.target instanceof Element && e.target.closest("input, textarea, select") !== null;
