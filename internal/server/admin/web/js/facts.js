// Figures side by side, as many in each line: eight stand in one line or four over four, never
// seven over one.
import { h, freshen } from "./dom.js";

const LEAST = 120, GAP = 20; // pixels

/** fact is a figure with its name, and more of it below. */
export const fact = (name, value, more, why) => h("div", { class: "fact" }, h("span", { class: "dim" }, name), h("b", { class: "num", title: value }, value),
  h("span", { class: "dim small", title: why || (typeof more === "string" ? more : "") }, more || "\u00a0"));

/** facts makes the place for them; draw shows a list. */
export function facts() {
  const box = h("div", { class: "facts" });
  const lay = () => {
    const n = box.children.length, fit = Math.max(2, Math.floor((box.clientWidth + GAP) / (LEAST + GAP)));
    if (n) box.style.gridTemplateColumns = `repeat(${Math.ceil(n / Math.ceil(n / fit))}, minmax(0, 1fr))`;
  };
  new ResizeObserver(lay).observe(box);
  return { box, draw(list) { freshen(box, h("div", { class: "facts" }, list.filter(Boolean))); lay(); } };
}
