// Elements as values. Text is always text: nothing here parses HTML.

/** h makes an element: props are properties, on* listeners, data-*, aria-* and role attributes. */
export function h(tag, props, ...children) {
  const e = tag instanceof Element ? tag : document.createElement(tag);
  set(e, props);
  e.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false));
  return e;
}

const SVG = "http://www.w3.org/2000/svg";

/** s is h for SVG, where all props are attributes. */
export function s(tag, props, ...children) {
  const e = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(props || {})) if (v !== null && v !== undefined) e.setAttribute(k, v);
  e.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false));
  return e;
}

function set(e, props) {
  for (const [k, v] of Object.entries(props || {})) {
    if (v === null || v === undefined) continue;
    if (k === "style") Object.assign(e.style, v);
    else if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "class") e.className = v;
    else if (k.includes("-") || k === "role" || k === "for" || k === "list") e.setAttribute(k, v);
    else e[k] = v;
  }
}

/** freshen makes an element look like another, and keeps it: a press that has begun on a button
 * is lost when the button goes. One with another data-verb does something else, and is replaced. */
export function freshen(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.dataset?.verb !== fresh.dataset?.verb) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (name === "style") old.style.cssText = fresh.style.cssText; // as an attribute it is forbidden
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const was = [...old.childNodes], next = [...fresh.childNodes];
  next.forEach((n, i) => i < was.length ? freshen(was[i], n) : old.append(n));
  was.slice(next.length).forEach(n => n.remove());
}

/** keep gives an element these children, and moves none that is in its place. */
export function keep(parent, children) {
  for (const e of [...parent.children]) if (!children.includes(e)) e.remove();
  children.forEach((e, i) => { if (parent.children[i] !== e) parent.insertBefore(e, parent.children[i] || null); });
}

/** icon is a small drawing of one path. */
export const icon = d => s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d, fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-linecap": "round", "stroke-linejoin": "round" }));

export const icons = {
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  again: "M4 12a8 8 0 0 1 14-5l2 2M20 4v5h-5M20 12a8 8 0 0 1-14 5l-2-2M4 20v-5h5",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  close: "M6 6l12 12M18 6L6 18",
  drawer: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4",
  rename: "M4 7V5h16v2M12 5v14M9 19h6",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  list: "M4 6h16M4 12h16M4 18h10",
};

/** tool is a button with an icon and a name. */
export const tool = (name, path, onclick) => h("button", { class: "icon", type: "button", title: name, "aria-label": name, onclick }, icon(path));

/** download gives a text to the browser as a file. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/** stored reads the browser's storage, which may be blocked; store writes it, and reports whether it could. */
export function stored(key) {
  try { return localStorage.getItem(key); } catch { return null; }
}

export function store(key, value) {
  try { localStorage.setItem(key, value); return true; } catch { return false; }
}

/** paced returns a function that calls draw in the next frame. If draw is slow, it takes at most a fifth of the time:
    the page then stays responsive while a long answer grows. */
export function paced(draw) {
  let due = false, pause = 0;
  return () => {
    if (due) return;
    due = true;
    setTimeout(() => requestAnimationFrame(() => {
      due = false;
      const began = performance.now();
      draw();
      pause = 4 * (performance.now() - began);
    }), pause);
  };
}

/** copy puts text on the clipboard, also where the page is not a secure context. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "hidden", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
