// The line that says that nothing new is heard of the cluster, and how old what is shown is.
import { h, freshen } from "./dom.js";
import { live, age } from "./live.js";

/** lost makes the line; draw brings it up to date. */
export function lost() {
  const box = h("div", { class: "lost-line", hidden: true }), why = h("b", { role: "alert" }), since = h("span", {});
  box.append(why, since);
  return { box, draw() {
    box.hidden = !live.trouble;
    freshen(why, h("b", { role: "alert" }, live.trouble));
    since.textContent = live.trouble && age() ? "What is shown is as of " + age() + "." : "";
  } };
}
