// A chart of the last minutes: one or two series over time, drawn as SVG, with a line under the
// pointer that names the values. Vertical lines are changes of the epoch.
import { h, s } from "./dom.js";
import { duration } from "./format.js";

const W = 600, H = 120, LEAST = 60;

/** chart makes one; draw(samples) brings it up to date. series: { name, value(sample), cls }, the
    first one behind; text writes a value. The heading shows the last of the newest sample, or that
    of options.main. */
export function chart(name, series, text, options = {}) {
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": name });
  const now = h("span", { class: "now num" }), from = h("span", {}), top = h("span", { class: "top num" });
  const tip = h("div", { class: "tip num", hidden: true });
  const plot = h("div", { class: "plot" }, svg, top, tip);
  const box = h("figure", { class: "card chart" }, h("figcaption", {}, h("h2", {}, name), now), plot,
    h("div", { class: "axis" }, from, series.length > 1 && h("span", { class: "keys" }, series.map(x => h("span", { class: x.cls }, x.name))), h("span", {}, "now")));
  let data = [], most = 1, span = LEAST;

  const x = i => W - (data.length - 1 - i) * W / (span - 1);
  const y = v => H - 3 - (H - 12) * v / most;

  function draw(samples) {
    data = samples;
    span = Math.max(LEAST, data.length);
    from.textContent = duration(1000 * span) + " ago";
    const values = series.map(one => samples.map((p, i) => one.value(p, samples[i - 1]) || 0));
    most = Math.max(options.least || 1, ...values.flat());
    const parts = [];
    for (let i = 1; i < data.length; i++) {
      if (data[i].epoch !== data[i - 1].epoch && data[i - 1].epoch) parts.push(s("line", { x1: x(i), x2: x(i), y1: 0, y2: H, class: "cut", "vector-effect": "non-scaling-stroke" }));
    }
    values.forEach((vs, n) => {
      if (vs.length < 2) return;
      const line = vs.map((v, i) => (i ? "L" : "M") + x(i).toFixed(1) + " " + y(v).toFixed(1)).join("");
      parts.push(s("path", { d: line + `L${W} ${H}L${x(0).toFixed(1)} ${H}Z`, class: "area " + series[n].cls }));
      parts.push(s("path", { d: line, class: "line " + series[n].cls, "vector-effect": "non-scaling-stroke" }));
    });
    svg.replaceChildren(...parts);
    top.textContent = text(most);
    const last = values.map(vs => vs.at(-1) || 0);
    now.replaceChildren(text(last.at(options.main ?? -1)), h("span", { class: "dim" }, options.beside ? options.beside(last) : ""));
    svg.setAttribute("aria-label", `${name}: now ${now.textContent}; at most ${text(most)} in the last five minutes`);
  }

  plot.addEventListener("pointermove", e => {
    const r = plot.getBoundingClientRect(), i = Math.round(data.length - 1 - (1 - (e.clientX - r.left) / r.width) * (span - 1));
    if (i < 0 || i >= data.length) { tip.hidden = true; return; }
    const left = x(i) / W * 100;
    tip.hidden = false;
    tip.className = left > 70 ? "tip num left" : "tip num";
    tip.style.left = left + "%";
    tip.replaceChildren(h("div", { class: "dim" }, (data.length - 1 - i) + " s ago, epoch " + data[i].epoch), ...series.toReversed().map(one => h("div", {}, one.name + " ", h("b", {}, text(one.value(data[i], data[i - 1]) || 0)))));
  });
  plot.addEventListener("pointerleave", () => { tip.hidden = true; });
  return { box, draw };
}
