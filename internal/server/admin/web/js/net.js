// Requests to this server, and server-sent events in the body of an answer.

/** Refused is an answer that is none of 2xx, in the server's words. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message || "HTTP " + status);
    this.status = status;
    this.code = error?.code;
  }
}

/** Lost is no answer at all: the server is gone, or silent. */
export class Lost extends Error {}

// reached awaits an answer or a part of one, and words what browsers word in their own way.
async function reached(promise, broken = "The coordinator cannot be reached.") {
  try {
    return await promise;
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Lost(e.name === "TimeoutError" ? "The coordinator does not answer." : broken);
  }
}

let skew = 0; // of this machine's clock, against the coordinator's

/** now is the time by the coordinator's clock, as far as a second or two matter. */
export const now = () => Date.now() - skew;

async function checked(r) {
  const date = Date.parse(r.headers.get("Date"));
  if (date) skew = Math.abs(Date.now() - date) < 3000 ? 0 : Date.now() - date;
  if (r.ok) return r;
  let error = null;
  try { error = (await r.json()).error; } catch { /* a proxy's words */ }
  throw new Refused(r.status, error);
}

export async function get(path, limit = 8000) {
  return reached((await checked(await reached(fetch(path, { signal: AbortSignal.timeout(limit) })))).json());
}

/** send asks by method; by a key other than the browser's own where one is given. */
export async function send(method, path, body, key) {
  const json = body !== undefined && !(body instanceof FormData);
  const init = { method, body: json ? JSON.stringify(body) : body };
  if (!(body instanceof FormData)) init.headers = { "Content-Type": "application/json" };
  if (key) {
    init.headers = { ...init.headers, Authorization: "Bearer " + key };
    init.credentials = "omit";
  }
  return reached((await checked(await reached(fetch(path, init)))).json());
}

const broke = "The connection to the coordinator broke off.";

/** stream posts a body and yields the data of each event; it fails where the stream breaks off. */
export async function* stream(path, body, signal) {
  const init = body === undefined ? { signal } : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const r = await checked(await reached(fetch(path, init)));
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read(), broke);
    if (done) throw new Lost(broke);
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const m = JSON.parse(line.slice(6));
      if (m.error && !m.object) throw new Refused(500, m.error);
      yield m;
    }
  }
}
