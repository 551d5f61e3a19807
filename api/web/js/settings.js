// How answers are made: the cache policy and sampling, in a drawer, kept in this browser. What
// is left empty is the server's to say.
import { h, tool, icons } from "./dom.js";
import { live } from "./live.js";

const KEY = "shoal.settings";
let values = {};
try { values = JSON.parse(localStorage.getItem(KEY) || "{}") || {}; } catch { /* begin anew */ }

const numbers = [
  ["temperature", "Temperature", { min: 0, max: 2, step: .1 }],
  ["max_tokens", "Most tokens", { min: 1, step: 1 }],
  ["top_p", "Top p", { min: 0, max: 1, step: .05 }],
  ["top_k", "Top k", { min: 0, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: .01 }],
  ["repetition_penalty", "Repetition penalty", { min: .1, max: 2, step: .05 }],
  ["seed", "Seed", { step: 1 }],
];

/** request is what the settings add to a request. */
export function request() {
  const out = {};
  for (const [k] of numbers) if (values[k] !== undefined && values[k] !== "") out[k] = Number(values[k]);
  for (const k of ["kv_policy", "speculate"]) if (values[k]) out[k] = values[k];
  return out;
}

export const system = () => (values.system || "").trim();
export const asText = () => values.form === "text";
export const policy = () => values.kv_policy || live.cluster?.kv_policy || "";

/** drawer opens the settings; changed is called after each change. */
export function drawer(changed) {
  const keep = (k, v) => {
    if (v === "") delete values[k]; else values[k] = v;
    localStorage.setItem(KEY, JSON.stringify(values));
    changed();
  };
  const field = (name, input) => h("label", { class: "field" }, name, input);
  const input = (k, props) => h("input", { name: k, value: values[k] ?? "", placeholder: "as the server says", oninput: e => keep(k, e.target.value), ...props });
  const choose = (k, options) => h("select", { name: k, onchange: e => keep(k, e.target.value) },
    options.map(([v, text]) => h("option", { value: v, selected: (values[k] || "") === v }, text)));
  const dialog = h("dialog", { class: "drawer", "aria-labelledby": "drawer-title", onclose: () => dialog.remove(), onclick: e => { if (e.target === dialog) dialog.close(); } },
    h("form", { method: "dialog" },
      h("div", { class: "head" }, h("h1", { id: "drawer-title" }, "How to answer"), h("span", { class: "end" }), tool("Close", icons.close, () => dialog.close())),
      field("Cache policy: which tokens stay in the KV cache", input("kv_policy", { placeholder: live.cluster?.kv_policy || "full", list: "policies", autocomplete: "off", spellcheck: false })),
      h("datalist", { id: "policies" }, (live.cluster?.kv_policies || []).map(p => h("option", { value: p }))),
      h("p", { class: "what" }, "Empty: the server's. A policy that keeps fewer tokens leaves room for more sequences; each answer says what its cache took, and what a full one would have."),
      field("System message", h("textarea", { name: "system", rows: 3, value: values.system || "", oninput: e => keep("system", e.target.value) })),
      h("div", { class: "two" }, numbers.map(([k, name, props]) => field(name, input(k, { type: "number", placeholder: "default", ...props }))),
        field("Drafts", choose("speculate", [["", "default"], ["off", "off"], ["suffix", "suffix"]]))),
      field("Send as", choose("form", [["", "chat, with the model's template"], ["text", "text that the model continues"]])),
      h("div", { class: "head" }, h("button", { type: "button", onclick: () => { values = {}; localStorage.removeItem(KEY); changed(); dialog.close(); } }, "Forget all"), h("span", { class: "end" }), h("button", { class: "main" }, "Done"))));
  document.body.append(dialog);
  dialog.showModal();
}
