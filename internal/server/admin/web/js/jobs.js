// Jobs and batches: what waits, runs and has ended, with its result; new ones; cancelling.
import { h, tool, icons, copy, freshen, keep, paced } from "./dom.js";
import { get, now, send, stream } from "./net.js";
import { ago, count, many } from "./format.js";
import { request, asText } from "./settings.js";
import { markdown } from "./markdown.js";

const look = { completed: "chip on", running: "chip on", in_progress: "chip on", dead: "chip bad", failed: "chip bad" };
const age = t => ago(1000 * t, now());

export function jobsPage(view) {
  const problem = h("div", { class: "error", role: "alert", hidden: true });
  const say = e => { problem.hidden = !e; problem.textContent = e ? e.message : ""; };
  const prompt = h("textarea", { id: "job", rows: 2, dir: "auto", placeholder: "A prompt, answered whatever fails meanwhile" });
  const most = h("input", { type: "number", min: 1, value: 256, "aria-label": "Most tokens" });
  const file = h("input", { type: "file", accept: ".jsonl,application/jsonl", "aria-label": "Batch file" });
  const counts = h("div", { class: "counts" }), table = h("tbody"), lines = h("div", { class: "batches" }), open = new Map(), rows = new Map();
  const states = h("select", { "aria-label": "Which jobs", onchange: () => refresh() }, [["", "all"], "queued", "running", "completed", "dead", "cancelled"].map(o => Array.isArray(o) ? h("option", { value: "" }, "all jobs") : h("option", { value: o }, o)));
  view.append(h("div", { class: "page jobs" }, problem,
    h("section", { class: "card", "aria-label": "New job" }, h("form", { class: "newjob", onsubmit: e => { e.preventDefault(); post(); } },
      h("label", { class: "field", for: "job" }, "New job", prompt), h("label", { class: "field" }, "Most tokens", most), h("button", { class: "main" }, "Queue"))),
    h("section", { "aria-label": "Jobs" }, h("div", { class: "head" }, h("h1", {}, "Jobs"), counts, h("span", { class: "end" }, states)),
      h("div", { class: "card sheet" }, h("table", {}, h("thead", {}, h("tr", {}, ["Prompt and answer", "State", "Tokens", "Attempt", "Accepted", "Copies", ""].map(t => h("th", { scope: "col" }, t || h("span", { class: "hidden" }, "Actions"))))), table))),
    h("section", { "aria-label": "Batches" }, h("div", { class: "head" }, h("h1", {}, "Batches"), h("form", { class: "end upload", onsubmit: e => { e.preventDefault(); upload(); } }, file, h("button", {}, "Upload and run"))), lines)));

  async function attempt(f) {
    try { say(null); await f(); await refresh(); } catch (e) { say(e); }
  }

  const post = () => attempt(async () => {
    const text = prompt.value.trim();
    if (!text) return;
    const more = { ...request(), max_tokens: Number(most.value) };
    await send("POST", "/v1/jobs", asText() ? { ...more, prompt: text } : { ...more, messages: [{ role: "user", content: text }] });
    prompt.value = "";
  });

  const upload = () => attempt(async () => {
    if (!file.files.length) throw new Error("Choose a .jsonl file first: one request a line.");
    const url = await endpoint(file.files[0]);
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", file.files[0]);
    const input = await send("POST", "/v1/files", form);
    await send("POST", "/v1/batches", { input_file_id: input.id, endpoint: url, completion_window: "24h" });
    file.value = "";
  });

  // endpoint is that of the first request of a file, which has the endpoint of all.
  async function endpoint(f) {
    const line = (await f.slice(0, 16 << 20).text()).split("\n").find(l => l.trim());
    try {
      return JSON.parse(line).url;
    } catch (e) {
      throw new Error("The first line of the file is not a request: " + e.message);
    }
  }

  function jobRow(j) {
    const name = h("button", { class: j.prompt_preview ? "quiet said" : "quiet said mono", type: "button", dir: "auto", "aria-expanded": open.has(j.id), title: j.id, onclick: () => toggle(j) }, j.prompt_preview || j.id.slice(0, 14) + "\u2026");
    return h("tr", { "data-job": j.id }, h("td", { class: "what" }, name, h("span", { class: "dim small answer" }, j.batch_id && h("span", { class: "chip" }, "batch"), j.error ? j.error.message : j.answer_preview || (j.state === "queued" ? "waits" : "\u00a0"))),
      h("td", {}, h("span", { class: look[j.state] || "chip", title: j.error ? j.error.message : "" }, j.state)),
      h("td", { class: "num" }, count(j.events)), h("td", { class: "num" }, j.attempt || ""), h("td", { class: "num dim" }, age(j.created_at)), h("td", { class: "dim" }, j.durability === "single" ? "1" : j.replicas),
      h("td", {}, ["queued", "running"].includes(j.state) ? h("button", { class: "quiet", type: "button", "data-verb": "cancel", onclick: () => attempt(() => send("DELETE", "/v1/jobs/" + j.id)) }, "Cancel")
        : h("button", { class: "quiet", type: "button", "data-verb": "forget", onclick: () => attempt(async () => { close(j.id); await send("DELETE", "/v1/jobs/" + j.id + "?purge=true"); }) }, "Forget")));
  }

  const close = id => { open.get(id)?.abort.abort(); open.get(id)?.row.remove(); open.delete(id); };

  // toggle shows the text of a job, as far as it is, and as it comes.
  async function toggle(j) {
    if (open.has(j.id)) { close(j.id); refresh(); return; }
    const text = h("div", { class: "text turn" }), end = h("div", { class: "dim small" });
    const it = { abort: new AbortController(), row: h("tr", { class: "result" }, h("td", { colSpan: 7 }, h("div", {}, text, end))) };
    open.set(j.id, it);
    refresh();
    let whole = "";
    const write = () => text.replaceChildren(...markdown(whole)), draw = paced(write);
    try {
      for await (const e of stream("/v1/jobs/" + j.id + "/events?from=0", undefined, it.abort.signal)) {
        if (e.object === "job.end") write(), end.replaceChildren(e.state + ", " + many(e.events, "token") + ", " + j.id + (e.error ? ": " + e.error.message : ""), " ", tool("Copy the answer", icons.copy, () => copy(whole)));
        else if (e.text) { whole += e.text; draw(); }
      }
    } catch (e) {
      if (e.name !== "AbortError") end.textContent = e.message;
    }
  }

  function batchCard(b) {
    const c = b.request_counts, done = c.total ? c.completed / c.total : 0, bad = c.total ? c.failed / c.total : 0, over = !["validating", "in_progress", "finalizing", "cancelling"].includes(b.status);
    const get = (id, name) => id && h("a", { class: "button", href: "/v1/files/" + id + "/content", download: name }, name === "output.jsonl" ? "Results" : "Errors");
    return h("div", { class: "card batch", "data-batch": b.id }, h("div", { class: "head" }, h("span", { class: "mono", title: b.id }, b.id.slice(0, 16) + "\u2026"), h("span", { class: look[b.status] || "chip" }, b.status.replace("_", " ")),
      h("span", { class: "dim small" }, b.endpoint + ", " + age(b.created_at)), h("span", { class: "end" }, get(b.output_file_id, "output.jsonl"), " ", get(b.error_file_id, "errors.jsonl"), !over && h("button", { type: "button", onclick: () => attempt(() => send("POST", "/v1/batches/" + b.id + "/cancel")) }, "Cancel"))),
      h("div", { class: "meter", role: "progressbar", "aria-valuenow": c.completed + c.failed, "aria-valuemax": c.total, "aria-label": "Lines that have ended" }, h("i", { class: "m-a", style: { width: 100 * done + "%" } }), h("i", { class: "m-bad", style: { width: 100 * bad + "%" } })),
      h("div", { class: "num small dim" }, count(c.completed) + " of " + many(c.total, "line") + " completed" + (c.failed ? ", " + count(c.failed) + " failed" : "") + (b.errors?.data?.length ? ": " + b.errors.data[0].message : "")));
  }

  async function refresh() {
    try {
      const state = states.value, [jobs, batches] = await Promise.all([get("/v1/jobs?limit=50" + (state ? "&state=" + state : "")), get("/v1/batches?limit=20")]);
      counts.replaceChildren(...Object.entries(jobs.counts).filter(([, n]) => n).map(([name, n]) => h("span", { class: look[name] || "chip" }, count(n) + " " + name)), jobs.store === "ok" ? "" : h("span", { class: "bad small" }, jobs.store));
      const all = new Set([...jobs.data, ...batches.data].map(x => x.id));
      for (const id of rows.keys()) if (!all.has(id)) rows.delete(id);
      const row = (x, draw) => {
        if (rows.has(x.id)) freshen(rows.get(x.id), draw(x)); else rows.set(x.id, draw(x));
        return rows.get(x.id);
      };
      keep(table, jobs.data.length ? jobs.data.flatMap(j => [row(j, jobRow), open.get(j.id)?.row].filter(Boolean)) : [h("tr", {}, h("td", { colSpan: 7, class: "empty" }, "No jobs. One that is queued here survives this page, its nodes and its coordinator."))]);
      keep(lines, batches.data.length ? batches.data.map(b => row(b, batchCard)) : [h("div", { class: "card empty" }, "No batches. A batch is a file with one request a line; each line is a job.")]);
      if (late) { late = false; say(null); }
    } catch (e) {
      late = true;
      say(e);
    }
  }

  let late = false;
  refresh();
  const every = setInterval(() => document.hidden || refresh(), 1500);
  return () => { clearInterval(every); [...open.keys()].forEach(close); };
}
