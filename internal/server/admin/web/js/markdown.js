// Markdown to elements. marked only cuts the text into tokens; every node is made here, and text
// only ever becomes text: HTML in an answer shows as it is written, pictures show as links.
import { lexer } from "/web/vendor/marked.js";
import { h, copy } from "./dom.js";
import { highlight } from "./highlight.js";

/** markdown renders an answer. */
export function markdown(text = "") {
  if (bare(text)) return [code(text, guess(text))];
  if (crowded(text)) return [plainText(text)];
  let tokens;
  try {
    tokens = lexer(text, { gfm: true, breaks: true });
  } catch { // whatever a model writes
    return [plainText(text)];
  }
  return deep(tokens, deepest) ? [plainText(text)] : blocks(tokens, auto);
}

// The direction of an outer block, with all that is in it, is that of its first letter that has a direction.
const auto = { dir: "auto" };
const plainText = text => h("p", auto, text);

// A model that repeats "**a" or "a_b": the time that marked takes grows with the square of the marks in a
// paragraph, an item or a row. Marks in a block of code are none.
const mostMarks = 1500;
const crowded = text => text.replace(/```[^]*?(?:```|$)/g, "").split(/\n\s*\n|\n(?=\s*(?:[-*+#>|]|\d+[.)]))/).some(p => (p.match(/[*_~]/g) || []).length > mostMarks);

// A model that repeats "- " or ">" nests as deep as its answer is long: the browser's stack would end.
const deepest = 64;
const within = t => [t.tokens, t.items, ...(t.header || []).map(c => c.tokens), ...(t.rows || []).flat().map(c => c.tokens)].filter(Boolean);
const deep = (tokens, left) => tokens.some(t => within(t).some(inner => !left || deep(inner, left - 1)));

// bare tells that the whole text is code, as small models write it, without a fence.
const starts = /^\s*(?:func|package|type|import|var|const|def|class|struct|enum|fn|let|function|async function|public|static|#include|\/\/|\/\*)[\s(]/;
const bare = text => starts.test(text) && !text.includes("```") && /[{:;)]\s*(?:\n|$)/.test(text);
const guess = text => /^\s*(?:def|class|import \w+$)/m.test(text) && !text.includes("{") ? "python" : /:=|\bfunc\b|^package /m.test(text) ? "go" : "code";

const blocks = (tokens, way) => tokens.map(t => block(t, way)).filter(Boolean);
const inlines = tokens => (tokens || []).map(inline);

function block(t, way = {}) {
  switch (t.type) {
    case "space": case "def": return null;
    case "heading": return h("h" + Math.min(t.depth + 1, 6), way, inlines(t.tokens));
    case "paragraph": return h("p", way, inlines(t.tokens));
    case "text": return t.tokens ? h("span", {}, inlines(t.tokens)) : document.createTextNode(plain(t));
    case "code": return code(t.text, t.lang || "");
    case "blockquote": return h("blockquote", way, blocks(t.tokens));
    case "hr": return h("hr");
    case "list": return h(t.ordered ? "ol" : "ul", t.ordered && t.start > 1 ? { start: t.start, ...way } : way, t.items.map(item));
    case "table": return h("table", way, h("thead", {}, h("tr", {}, t.header.map(c => h("th", {}, inlines(c.tokens))))),
      h("tbody", {}, t.rows.map(r => h("tr", {}, r.map(c => h("td", {}, inlines(c.tokens)))))));
    default: return h("p", {}, t.raw);
  }
}

const item = t => h("li", {}, t.task && h("input", { type: "checkbox", disabled: true, checked: Boolean(t.checked), "aria-label": t.checked ? "done" : "to do" }), blocks((t.tokens || []).filter(x => x.type !== "checkbox")));

function inline(t) {
  switch (t.type) {
    case "strong": return h("strong", {}, inlines(t.tokens));
    case "em": return h("em", {}, inlines(t.tokens));
    case "del": return h("del", {}, inlines(t.tokens));
    case "codespan": return h("code", {}, t.text);
    case "br": return h("br");
    case "link": return link(t.href, inlines(t.tokens));
    case "image": return link(t.href, [t.text || t.href]);
    case "text": return t.tokens ? h("span", {}, inlines(t.tokens)) : document.createTextNode(plain(t));
    case "escape": return document.createTextNode(t.text);
    default: return document.createTextNode(t.raw);
  }
}

const named = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "\"", "&#39;": "'", "&nbsp;": "\u00a0" };
const plain = t => t.text.replace(/&(?:amp|lt|gt|quot|#39|nbsp);/g, m => named[m]);

// link goes to the web and to nothing else: a script in a link stays text.
function link(href, children) {
  let url = null;
  try { url = new URL(href); } catch { /* a path of this server is none of an answer's business */ }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) return h("span", {}, children, " (" + href + ")");
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function code(text, lang) {
  const button = h("button", { class: "quiet", type: "button", onclick: async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const name = lang.split(/\s/)[0].slice(0, 20);
  return h("div", { class: "code" }, h("div", { class: "top" }, h("span", {}, name || "text"), button), h("pre", { tabIndex: 0, "aria-label": "code" }, h("code", {}, highlight(text, name))));
}
