// Numbers and times as people read them.

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 1024 && u < 4) { n /= 1024; u++; }
  return n.toFixed(u && n < 100 ? 1 : 0).replace(/\.0$/, "") + " " + units[u];
}

export const count = n => Math.round(n).toLocaleString("en");
export const percent = x => (100 * x).toFixed(x > 0 && x < .1 ? 1 : 0) + " %";
export const many = (n, one, more = one + "s") => count(n) + " " + (n === 1 ? one : more);

/** rate has three digits that count. */
export const rate = n => n >= 100 || n === 0 ? count(n) : n.toFixed(1);

/** pace is the rate of an answer of so many tokens after its first one; "" where the time is too
    short to say: tokens of one step come together. */
export const pace = (tokens, seconds) => seconds >= .2 && tokens > 0 ? rate(tokens / seconds) : "";

export function duration(ms) {
  if (ms < 1000) return Math.round(ms) + " ms";
  if (ms < 60000) return (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + " s";
  const m = Math.floor(ms / 60000);
  return m < 60 ? m + " min" : m < 48 * 60 ? Math.floor(m / 60) + " h" : Math.floor(m / 1440) + " days";
}

/** ago says how long before a time something was, both in milliseconds. */
export const ago = (ms, now) => now - ms < 2000 ? "just now" : duration(Math.floor((now - ms) / 1000) * 1000).replace(/\.\d+ s/, " s") + " ago";
export const clock = at => new Date(at).toLocaleTimeString("en-GB");
export const day = at => new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
