// The bar, the pages behind it, and the news that show on every page.
import { h } from "./dom.js";
import { live, on, start } from "./live.js";
import { now } from "./net.js";
import { many, rate } from "./format.js";
import { title, outcome, grave } from "./words.js";
import { chatPage } from "./chat.js";
import { clusterPage } from "./cluster.js";
import { faultsPage } from "./faults.js";
import { jobsPage } from "./jobs.js";

const pages = { chat: chatPage, cluster: clusterPage, faults: faultsPage, jobs: jobsPage };
const view = document.getElementById("view");
let leave = () => {};

function show() {
  const name = location.hash.slice(1) in pages ? location.hash.slice(1) : "chat";
  leave();
  for (const a of document.querySelectorAll("nav a")) {
    if (a.hash === "#" + name) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  }
  document.title = name[0].toUpperCase() + name.slice(1) + " \u00b7 Shoal";
  view.replaceChildren();
  if (name === "faults") document.getElementById("news").replaceChildren();
  leave = pages[name](view) || (() => {});
}

const shade = { ready: "", suspect: "warn", fenced: "warn", unreachable: "warn", refused: "warn", drained: "wait", gone: "gone" };

function pulse() {
  const c = live.cluster, at = document.getElementById("pulse");
  if (live.trouble || !c) {
    at.replaceChildren(h("span", { class: live.trouble ? "bad" : "" }, live.trouble || "\u2026"));
    return;
  }
  const ready = c.nodes.filter(n => n.state === "ready").length;
  const fleet = h("span", { class: "fleet", role: "img", "aria-label": ready + " of " + many(live.nodes.length, "node") + " ready" },
    live.nodes.slice(0, 16).map(n => h("i", { class: shade[n.word] ?? "wait", title: n.id + ": " + n.state })));
  at.replaceChildren(
    h("span", { class: "wide" }, h("b", {}, c.model)),
    h("span", { class: "wide" }, "epoch ", h("b", {}, c.epoch)),
    h("span", { class: "wide" }, h("b", {}, rate(c.tokens_per_second)), " tok/s"),
    fleet);
}

// News are the ends of placements, once streams have gone on, and what goes wrong: since this
// page was opened.
function news({ event: e }) {
  if (location.hash === "#faults" || Date.parse(e.at) < now() - Math.min(performance.now(), 30000) || !grave(e) || (e.cost && e.cost.open)) return;
  const box = document.getElementById("news");
  const a = h("a", { href: "#faults", class: e.node && e.kind !== "node_drained" ? "bad" : "", "data-event": e.id }, h("b", {}, title(e)), outcome(e));
  box.querySelector(`[data-event="${Number(e.id)}"]`)?.remove();
  box.append(a);
  setTimeout(() => a.remove(), 9000);
}

function theme() {
  const root = document.documentElement, kept = localStorage.getItem("shoal.theme");
  if (kept) root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("shoal.theme", root.dataset.theme);
  });
}

theme();
on("state", pulse);
on("event", pulse);
on("event", news);
addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", e => { e.preventDefault(); view.focus(); });
show();
start();
