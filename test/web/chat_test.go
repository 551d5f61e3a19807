package web_test

import (
	"strings"
	"testing"
)

// chat: an answer streams, shows its cost, is regenerated and stopped; turns are kept.
func chat(t *testing.T, b *browser, _ *cluster) {
	b.begin("Write a Go function that reverses a string.", 0)
	first := b.whole()
	if !strings.Contains(first, "func reverse") || !value[bool](b, last+`.querySelector(".code .k") !== null`) {
		t.Errorf("the answer is not shown as code: %q", first)
	}
	figures := value[string](b, last+`.querySelector(".figures").innerText`)
	for _, want := range []string{"first token", "70 tokens", "prompt 15", "cache 1 MiB", "full"} {
		if !strings.Contains(strings.Join(strings.Fields(figures), " "), want) {
			t.Errorf("the figures have no %q: %q", want, figures)
		}
	}
	b.press(`.code button`)
	b.until(`document.querySelector(".code button").textContent === "Copied"`)

	// Select a policy in the drawer and repeat the question: its cache size is shown next to a full
	// cache's.
	b.press(`button[aria-label="How to answer"]`)
	if fields := value[string](b, `[...document.querySelectorAll("dialog [name]")].filter(e => e.offsetParent).map(e => e.name).join(" ")`); !strings.HasPrefix(fields, "system temperature ") || !strings.HasSuffix(fields, " policy") {
		t.Errorf("the drawer has the fields %s", fields)
	}
	b.choose(`select[name=policy]`, "streaming")
	b.empty(`input[name=kv_policy]`)
	b.write(`input[name=kv_policy]`, "streaming:sink=8,recent=56")
	b.write(`input[name=temperature]`, "0")
	b.write(`input[name=max_tokens]`, "90")
	b.press(`dialog button.main`)
	b.until(`!document.querySelector("dialog") && document.querySelector(".composer .chip").textContent === "cache policy: streaming"`)
	b.press(`button[aria-label="Answer again"]`)
	b.whole()
	if n := value[int](b, `document.querySelectorAll(".turn").length`); n != 2 {
		t.Errorf("%d turns after an answer was regenerated", n)
	}
	if text := value[string](b, last+`.querySelector(".figures .cache").innerText.replace(/\s+/g, " ")`); !strings.Contains(text, "of 1 MiB full") {
		t.Errorf("the cache of a policy that evicts is shown as %q", text)
	}
	shot(b, "chat")

	// A stopped answer keeps its text, and the conversation survives a reload.
	b.settings(`{"form":"text","temperature":"0","max_tokens":"4000"}`)
	b.until(`document.querySelectorAll(".turn").length === 2`)
	b.press(`.chats .new`)
	b.begin("// Package sort provides", 20)
	b.press(`.composer button:not(.main):not(.icon):not(.chip)`)
	stopped := b.whole()
	b.settings(`{}`)
	if kept := value[string](b, last+`.querySelector(".text").innerText`); kept != stopped || stopped == "" {
		t.Errorf("the stopped answer %q reads %q after a reload", stopped, kept)
	}
	if n := value[int](b, `document.querySelectorAll(".chats .row").length`); n != 2 {
		t.Errorf("%d conversations are kept", n)
	}
}

// hostile: model output never becomes HTML, a script or a request.
func hostile(t *testing.T, b *browser, _ *cluster) {
	got := value[string](b, `(async () => {
		const { markdown } = await import("/web/js/markdown.js");
		const text = [
			"<img src=x onerror='window.pwned=1'><script>window.pwned=2<\/script>",
			"[a](javascript:window.pwned=3) [b](data:text/html,<script>window.pwned=4<\/script>) " +
				"![c](http://192.0.2.1/x.png) [d](/v1/nodes/node-0/drain)",
			"<javascript:window.pwned=5> <svg/onload=window.pwned=6> &lt;b&gt; <iframe srcdoc='<script>window.pwned=7<\/script>'></iframe>",
			"| <b onclick='x'>t</b> |\n| --- |\n| <details open ontoggle='window.pwned=8'> |",
			"`+"```"+`html\n</code></pre><script>window.pwned=9<\/script>\n`+"```"+`",
			"# <style>*{display:none}</style>", "- [ ] <input autofocus onfocus='window.pwned=10'>", "[e]: javascript:window.pwned=11\n\n[e]",
		].join("\n\n");
		const box = document.createElement("div");
		box.append(...markdown(text));
		document.body.append(box);
		await new Promise(r => setTimeout(r, 100));
		const tags = "P H2 SPAN A TABLE THEAD TBODY TR TH TD DIV BUTTON PRE CODE UL LI INPUT BR EM STRONG".split(" ");
		const bad = [...box.querySelectorAll("*")].filter(e => !tags.includes(e.tagName) ||
			[...e.attributes].some(a => a.name.startsWith("on") || a.name === "style" || a.name === "src" ||
				a.name === "href" && !/^https?:/.test(a.value)));
		let sink = "innerHTML works";
		try { document.createElement("div").innerHTML = "<b>x</b>"; } catch { sink = ""; }
		const shown = ["onerror='window.pwned=1'", "<details open"].filter(s => !box.textContent.includes(s));
		box.remove();
		for (const s of ["- ", ">", "*a **b ", "[", "1. "]) for (const n of [60, 1500, 6000]) {
			const text = s.repeat(n) + "end";
			try {
				const deep = document.createElement("div");
				deep.append(...markdown(text));
				if (!deep.textContent.includes("end")) shown.push("no end of " + n + " times " + s);
				let most = 0;
				for (const e of deep.querySelectorAll("*")) {
					let at = 0;
					for (let p = e; p && at <= 200; p = p.parentElement) at++;
					most = Math.max(most, at);
					if (most > 200) break;
				}
				if (most > 200) shown.push("deep: " + n + " times " + s);
			} catch (e) { shown.push(e.name + " of " + n + " times " + s); }
		}
		return [window.pwned ?? "", sink, ...shown, ...bad.map(e => e.outerHTML)].join("");
	})()`)
	if got != "" {
		t.Errorf("hostile text got through: %s", got)
	}
	b.expect("TrustedHTML") // triggered on purpose: the last line of defence

	// A question whose answer failed stays, and goes with the next one: many templates refuse two questions in a row.
	const history = `[{role: "user", content: "a"}, {role: "assistant", content: "", error: "x"}, {role: "user", content: "b"}]`
	if sent := value[string](b, `(async () => {
		const { answer } = await import("/web/js/answer.js"), ask = window.fetch, turn = { role: "assistant" };
		let sent = null;
		window.fetch = async (_, init) => { sent = JSON.parse(init.body).messages; return new Response("data: [DONE]\n\n"); };
		await answer(`+history+`, turn, undefined, () => {});
		window.fetch = ask;
		return turn.error + JSON.stringify(sent);
	})()`); sent != `[{"role":"user","content":"a\n\nb"}]` {
		t.Errorf("after a failed answer the page sends %s", sent)
	}
}
