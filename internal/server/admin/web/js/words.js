// What an event is called, and what it came to.
import { count, duration, many } from "./format.js";

const titles = {
  node_lost: "$ is gone", node_restarted: "$ is a new process", node_drained: "$ drains", node_fenced: "$ is fenced", node_joined: "Nodes take their shares",
  step_failed: "A step failed", lease_lost: "Another coordinator took over", node_up: "$ is here", node_works: "$ works again", node_undrained: "$ may take a share again",
  node_refused: "$ cannot take part", coordinator_started: "The coordinator started", coordinator_took_over: "A standby took over", serving: "The first placement serves",
};

export const title = e => (titles[e.kind] || e.kind.replaceAll("_", " ")).replace("$ is here", e.node?.includes(",") ? "$ are here" : "$ is here").replace("$", e.node || "A node");

/** grave reports whether an event is shown on every page. */
export const grave = e => Boolean(e.cost) || ["node_lost", "node_fenced", "node_refused"].includes(e.kind);

/** trouble reports whether an event has an unintended cause. */
export const trouble = e => ["node_lost", "node_fenced", "node_refused", "step_failed", "lease_lost"].includes(e.kind);

/** outcome is the cost of an end in one sentence. */
export function outcome(e) {
  const c = e.cost;
  if (!c) return e.reason || "It had no share.";
  if (!c.next_epoch) return "No placement serves in its place yet.";
  if (!c.streams && c.open) return "Epoch " + c.next_epoch + " serves after " + duration(c.stall_ms) + "; streams go on.";
  if (!c.streams) return "Epoch " + c.next_epoch + " served after " + duration(c.stall_ms) + "; nothing was running.";
  return many(c.went_on, "stream") + " of " + count(c.streams) + " went on, silent for " + duration(c.silent_ms || c.stall_ms) + " at most; " +
    count(c.recomputed_tokens + c.replayed_tokens) + " tokens computed again" + (c.failed ? "; " + count(c.failed) + " failed." : ".");
}
