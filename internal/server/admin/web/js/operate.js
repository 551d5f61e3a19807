// Drains and undrains nodes. That takes an operator's key where keys have roles: one is asked
// for when the browser's own is refused, and kept until the page is left.
import { h } from "./dom.js";
import { send } from "./net.js";

let key = "";

async function operate(id, verb) {
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

/** drainer makes the button that drains a node, or takes it back; draw brings it up to date. It
 * stays, and is never disabled: who works from the keyboard would lose the place. */
export function drainer(id, problem) {
  let busy = false;
  const button = h("button", { class: "quiet small", type: "button", onclick: async () => {
    if (busy) return;
    busy = true;
    problem.textContent = "";
    try {
      await operate(id, button.dataset.verb);
    } catch (e) {
      problem.textContent = e.message;
    }
    busy = false;
  } });
  const draw = n => {
    const back = n.word === "drained" || n.word === "draining";
    button.hidden = n.word === "gone" || n.word === "refused";
    button.dataset.verb = back ? "undrain" : "drain";
    button.textContent = back ? "Undrain" : "Drain";
    button.setAttribute("aria-label", button.textContent + " " + id);
  };
  return { button, draw };
}

/** ask shows a dialog, and gives the key that was typed; "": none was. */
function ask(what, why) {
  return new Promise(done => {
    const input = h("input", { type: "password", autocomplete: "off", required: true });
    const end = value => { box.close(); box.remove(); done(value); };
    const form = h("form", { onsubmit: e => { e.preventDefault(); end(input.value.trim()); } },
      h("p", {}, why), h("label", { class: "field" }, "An operator's key, to " + what, input),
      h("div", { class: "head" }, h("button", { class: "quiet end", type: "button", onclick: () => end("") }, "Cancel"), h("button", { class: "main" }, "Use it")));
    const box = h("dialog", { class: "card", "aria-label": "Operator's key", oncancel: () => end("") }, form);
    document.body.append(box);
    box.showModal();
  });
}
