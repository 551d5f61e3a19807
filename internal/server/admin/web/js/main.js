// The bar, the pages behind it, and the news that show on every page.
import { h, freshen, store, stored } from "./dom.js";
import { live, age, on, start } from "./live.js";
import { now } from "./net.js";
import { rate } from "./format.js";
import { title, outcome, grave } from "./words.js";
import { chatPage } from "./chat.js";
import { clusterPage } from "./cluster.js";
import { faultsPage } from "./faults.js";
import { jobsPage } from "./jobs.js";
import { help, term, typing } from "./help.js";

const pages = { chat: chatPage, cluster: clusterPage, faults: faultsPage, jobs: jobsPage };
const view = document.getElementById("view");
let leave = () => {};

function show() {
  const name = Object.hasOwn(pages, location.hash.slice(1)) ? location.hash.slice(1) : "chat";
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
  document.body.classList.toggle("stale", Boolean(live.trouble));
  const ready = live.nodes.filter(n => n.state === "ready").length, many = live.nodes.length;
  const fleet = h("span", { class: "fleet", role: "img", "aria-label": `${ready} of ${many} ${many === 1 ? "node" : "nodes"} ${live.trouble ? "were" : many === 1 ? "is" : "are"} ready` },
    live.nodes.slice(0, 16).map(n => h("i", { class: shade[n.word] ?? "wait", title: n.id + ": " + n.state })));
  const wide = (...x) => h("span", { class: "wide" }, x);
  const words = live.trouble ? [h("span", { class: "bad narrow" }, age() ? "lost " + age() : "no contact"), wide(h("span", { class: "bad" }, live.trouble)), age() && wide("as of " + age())] : !c ? ["\u2026"] :
    [wide(h("b", {}, c.models ? c.models.map(m => m.model).join(", ") : c.model)), wide(term("epoch", "epoch"), " ", h("b", {}, c.epoch)), wide(h("b", {}, rate(c.tokens_per_second)), " ", term("tok/s", "tokens"))];
  freshen(at, h("div", { id: "pulse", class: "pulse" }, words.filter(Boolean), c && fleet));
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
  const root = document.documentElement, kept = stored("shoal.theme");
  if (kept) root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store("shoal.theme", root.dataset.theme);
  });
}

theme();
on("state", pulse);
on("event", pulse);
on("event", news);
addEventListener("hashchange", show);
document.getElementById("help").addEventListener("click", help);
document.addEventListener("keydown", e => {
  if (typing(e)) return;
  const page = Object.keys(pages)[Number(e.key) - 1];
  if (page) location.hash = page; else if (e.key === "?") help(); else return;
  e.preventDefault();
});
document.querySelector(".skip").addEventListener("click", e => { e.preventDefault(); view.focus(); });
show();
start();
