// How answers are made: the cache policy and sampling, in a drawer, kept in this browser. What
// is left empty is the server's to say.
import { h, tool, icons, store, stored } from "./dom.js";
import { live } from "./live.js";

const KEY = "shoal.settings";
let values = {};
try { values = JSON.parse(stored(KEY) || "{}") || {}; } catch { /* begin anew */ }

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

// What a policy does, in a line; what else it has is in the documentation.
const policies = {
  full: "Keeps every token.",
  streaming: "Keeps the first tokens and the most recent ones.",
  snapkv: "Keeps the tokens of the prompt that its end attends to.",
  snapstream: "SnapKV for the prompt, and a window of recent tokens for the answer.",
  sage: "Keeps the first, the recent and the most attended tokens of the prompt.",
  h2o: "Keeps recent tokens and those that have had most attention.",
  tova: "Drops the token with the least attention, one by one.",
  knorm: "Keeps the tokens whose keys are smallest.",
  pyramidkv: "As snapkv, with more tokens in lower layers than in higher ones.",
  adakv: "As snapkv, with more tokens in heads whose attention is spread.",
  lagkv: "Keeps the tokens least like those that follow them.",
  resnap: "As snapkv, and compresses the cache again while it answers.",
  loki: "Keeps every token, and reads those whose leading key components match.",
  infinigen: "Keeps every token, and reads those close to the best match.",
  quest: "Keeps every token, and reads the pages that matter.",
  shadowkv: "Keeps small keys in memory, and reads the values that matter.",
  squeezed: "Clusters the keys of the prompt, and reads the clusters that matter.",
};

/** drawer opens the settings; changed is called after each change. at is the field to begin with. */
export function drawer(changed, at) {
  const keep = (k, v) => {
    if (v === "") delete values[k]; else values[k] = v;
    store(KEY, JSON.stringify(values));
    changed();
  };
  const field = (name, input) => h("label", { class: "field" }, name, input);
  const input = (k, props) => h("input", { name: k, value: values[k] ?? "", placeholder: "as the server says", oninput: e => keep(k, e.target.value), ...props });
  const number = ([k, name, props]) => field(name, input(k, { type: "number", placeholder: "default", ...props }));
  const choose = (k, options) => h("select", { name: k, onchange: e => keep(k, e.target.value) },
    options.map(([v, text]) => h("option", { value: v, selected: (values[k] || "") === v }, text)));

  // A policy is chosen by its name; its parameters can be changed below.
  const usage = live.cluster?.kv_policies || [], nameOf = spec => spec.split(":")[0], chosen = values.kv_policy ? nameOf(values.kv_policy) : "";
  const spec = input("kv_policy", { autocomplete: "off", spellcheck: false, placeholder: "name:parameter=value,...", "aria-label": "Cache policy with its parameters" });
  const says = h("p", { class: "what" });
  const choice = h("select", { name: "policy", onchange: () => { spec.value = usage.find(u => nameOf(u) === choice.value) || ""; keep("kv_policy", spec.value); explain(); } },
    h("option", { value: "" }, "the server's: " + nameOf(live.cluster?.kv_policy || "full")),
    [...new Set([...usage.map(nameOf), ...(chosen ? [chosen] : [])])].map(name => h("option", { value: name, selected: name === chosen }, name)));
  const explain = () => {
    const name = choice.value || nameOf(live.cluster?.kv_policy || "full");
    spec.hidden = !choice.value || !spec.value.includes(":");
    says.textContent = (policies[name] ? policies[name] + " " : "") + "A policy that keeps fewer tokens leaves room for more sequences. Each answer shows what its cache took, of a full one.";
  };
  explain();

  const dialog = h("dialog", { class: "drawer", "aria-labelledby": "drawer-title", onclose: () => dialog.remove(), onclick: e => { if (e.target === dialog) dialog.close(); } },
    h("form", { method: "dialog" },
      h("div", { class: "head" }, h("h1", { id: "drawer-title" }, "How to answer"), h("span", { class: "end" }), tool("Close", icons.close, () => dialog.close())),
      field("System message", h("textarea", { name: "system", rows: 4, value: values.system || "", placeholder: "Who the model is, and how it answers", oninput: e => keep("system", e.target.value) })),
      h("div", { class: "two" }, numbers.map(number), field("Drafts", choose("speculate", [["", "default"], ["off", "off"], ["suffix", "suffix"]]))),
      field("Send as", choose("form", [["", "chat, with the model's template"], ["text", "text that the model continues"]])),
      field("Cache policy: which tokens stay in the KV cache", choice), spec, says,
      h("div", { class: "head" }, h("button", { type: "button", onclick: () => { values = {}; store(KEY, "{}"); changed(); dialog.close(); } }, "Forget all"), h("span", { class: "end" }), h("button", { class: "main" }, "Done"))));
  document.body.append(dialog);
  dialog.showModal();
  (at === "kv_policy" ? choice : dialog.querySelector("[name=system]")).focus();
}
