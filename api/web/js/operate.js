// Drains and undrains nodes. That takes an operator's key where keys have roles: one is asked
// for when the browser's own is refused, and kept until the page is left.
import { h } from "./dom.js";
import { send } from "./net.js";

let key = "";

export async function operate(id, verb) {
  for (;;) {
    try {
      return await send("POST", "/v1/nodes/" + encodeURIComponent(id) + "/" + verb, undefined, key);
    } catch (e) {
      if (e.status !== 403 && !(e.status === 401 && key)) throw e;
      key = await ask(verb + " " + id, e.message);
      if (!key) throw e;
    }
  }
}

/** ask shows a dialog, and gives the key that was typed; "": none was. */
function ask(what, why) {
  return new Promise(done => {
    const input = h("input", { type: "password", autocomplete: "off", required: true });
    const end = value => { box.remove(); done(value); };
    const form = h("form", { onsubmit: e => { e.preventDefault(); end(input.value.trim()); } },
      h("p", {}, why), h("label", { class: "field" }, "An operator's key, to " + what, input),
      h("div", { class: "head" }, h("button", { class: "quiet end", type: "button", onclick: () => end("") }, "Cancel"), h("button", { class: "main" }, "Use it")));
    const box = h("dialog", { class: "card", "aria-label": "Operator's key", oncancel: () => end("") }, form);
    document.body.append(box);
    box.showModal();
  });
}
