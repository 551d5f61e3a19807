// A little colour for code: comments, strings, numbers, and words that many languages share.
const words = new Set(("func return if else for range var const type struct interface package import go defer chan select case switch default break continue map nil true false " +
  "def class from as in not and or is None True False lambda with yield try except finally raise pass elif while async await let function new this export extends static void int float string bool " +
  "public private fn mut impl use match pub enum SELECT FROM WHERE INSERT UPDATE DELETE").split(" "));
const hash = /^(py|python|sh|bash|shell|ruby|rb|yaml|yml|toml|make|dockerfile|perl|r)$/i;
const slashes = /(\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`[^`]*`?)|\b(\d[\w.]*)|([A-Za-z_]\w*)/g;
const hashes = /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|\b(\d[\w.]*)|([A-Za-z_]\w*)/g;

/** highlight returns the text as nodes. */
export function highlight(text, lang) {
  if (!lang || text.length > 50000) return [document.createTextNode(text)];
  const out = [];
  let at = 0;
  for (const m of text.matchAll(hash.test(lang) ? hashes : slashes)) {
    const cls = m[1] ? "c" : m[2] ? "s" : m[3] ? "n" : words.has(m[4]) ? "k" : "";
    if (!cls) continue;
    if (m.index > at) out.push(document.createTextNode(text.slice(at, m.index)));
    const e = document.createElement("span");
    e.className = cls;
    e.textContent = m[0];
    out.push(e);
    at = m.index + m[0].length;
  }
  out.push(document.createTextNode(text.slice(at)));
  return out;
}
