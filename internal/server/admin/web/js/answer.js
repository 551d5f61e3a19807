// One answer as it comes: its text, its figures, and what happened to the cluster meanwhile.
import { Lost, stream } from "./net.js";
import { live, on } from "./live.js";
import { request, system, asText } from "./settings.js";

/** answer asks for the next turn and calls changed at each piece. The turn that it fills is
    kept as it is: content, thought, figures, error, outages. */
export async function answer(turns, turn, signal, changed) {
  const began = performance.now(), before = Math.max(0, ...live.events.map(e => e.id));
  let first = 0, pieces = 0;
  Object.assign(turn, { form: asText() ? "text" : "chat", content: "", thought: "", error: "", outages: [], figures: null });
  const off = on("event", ({ event: e }) => {
    if (!e.cost || e.id <= before) return;
    turn.outages = [...turn.outages.filter(x => x.id !== e.id), e];
    changed();
  });
  const figures = usage => {
    const now = performance.now();
    turn.figures = { first: first ? first - began : 0, pieces, tokens: usage?.completion_tokens ?? pieces, seconds: first ? (now - first) / 1000 : 0, usage };
  };
  try {
    let usage = null, finish = "";
    for await (const m of stream(asText() ? "/v1/completions" : "/v1/chat/completions", body(turns), signal)) {
      if (m.usage) usage = m.usage;
      for (const c of m.choices || []) {
        const text = c.text ?? c.delta?.content ?? "", thought = c.delta?.reasoning_content ?? "";
        if (text || thought) {
          first ||= performance.now();
          pieces++;
        }
        turn.content += text;
        turn.thought += thought;
        finish = c.finish_reason || finish;
      }
      figures(usage);
      changed();
    }
    turn.figures = { ...turn.figures, finish };
  } catch (e) {
    if (e.name === "AbortError") turn.figures = { ...turn.figures, finish: "stopped" };
    else if (e instanceof Lost) turn.error = e.message + (turn.content ? " What came is kept." : " Your question is kept.") + " Answer again when the coordinator is back.";
    else turn.error = e.code === "no_chat_template" ? e.message + " Send as text instead: the drawer has it." : e.message;
  } finally {
    off();
    turn.done = true;
    for (const e of live.events) { // the newest word on each
      const at = turn.outages.findIndex(x => x.id === e.id);
      if (at >= 0) turn.outages[at] = e;
    }
  }
}

function body(turns) {
  const out = { ...request(), stream: true, stream_options: { include_usage: true } };
  const said = [];
  for (const t of turns.filter(t => !t.error && (t.role === "user" || t.content))) {
    const last = said.at(-1);
    if (last?.role === t.role) last.content += "\n\n" + t.content; // the answer between failed: many templates refuse two questions in a row
    else said.push({ role: t.role, content: t.content });
  }
  if (asText()) return { max_tokens: 256, ...out, prompt: [system(), ...said.map(t => t.content)].filter(Boolean).join("\n") };
  return { ...out, messages: system() ? [{ role: "system", content: system() }, ...said] : said };
}
