// How another machine joins this cluster.
import { h, tool, icons, copy } from "./dom.js";
import { live } from "./live.js";

const alone = host => /^(127\.|localhost$|\[?::1\]?$)/.test(host);

/** command is what another machine runs to join; "": the cluster listens on its own machine alone. */
export function command() {
  const at = live.cluster?.join || "";
  if (!at || alone(at.slice(0, at.lastIndexOf(":")))) return "";
  return `shoal node --join ${at} --bind ADDRESS:7070 --cluster-key key --model bus`;
}

/** box shows a command, with a button that copies it. */
export const box = text => h("div", { class: "command" }, h("pre", {}, h("code", {}, text)), tool("Copy the command", icons.copy, () => copy(text)));

/** join opens the dialog. */
export function join() {
  const here = command(), host = alone(location.hostname) ? "HOST" : location.hostname;
  const text = here ? [h("p", {}, "Run this on the other machine, with the program and the file of the cluster key there:"), box(here)]
    : [h("p", {}, "This cluster listens on its own machine alone. To use several, make a key and copy its file to each machine; then start the cluster here as"),
      box(`shoal keygen -o key\nexport SHOAL_API_KEY=SECRET\nshoal coordinator --bind ${host}:7070 --cluster-key key --listen ${host}:8080 --model DIR`),
      h("p", {}, "and a node on each machine:"), box(`shoal node --join ${host}:7070 --bind ADDRESS:7070 --cluster-key key --model bus`)];
  const dialog = h("dialog", { class: "card join", "aria-labelledby": "join-title", onclose: () => dialog.remove(), onclick: e => { if (e.target === dialog) dialog.close(); } },
    h("div", { class: "head" }, h("h1", { id: "join-title" }, "Add a machine"), h("span", { class: "end" }, tool("Close", icons.close, () => dialog.close()))),
    text, h("p", { class: "dim small" }, (here ? "" : "HOST is this machine's IP address. ").replace("HOST", host), "ADDRESS is the other machine's own IP address. With --model bus it fetches its part of the weights from here; name a folder instead where the checkpoint is. It takes a share within seconds, and answers under way continue."));
  document.body.append(dialog);
  dialog.showModal();
}
