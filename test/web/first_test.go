package web_test

import (
	"slices"
	"strings"
	"testing"
)

// first: the page of a new user. An idle cluster shows no rate, another machine can be added, and eight
// figures and the nodes' cards fit a small laptop.
func first(t *testing.T, b *browser, _ *cluster) {
	b.until(`/(^|\s)0 tok\/s/.test(document.querySelector("#pulse").innerText)`)
	b.press(".another button")
	b.until(`document.querySelector("dialog.join")?.innerText.includes("shoal node --join HOST:7070")`)
	b.press(`dialog button[aria-label="Close"]`)
	b.until(`!document.querySelector("dialog")`)
	if got := value[string](b, `(async () => {
		const { live } = await import("/web/js/live.js"), { command } = await import("/web/js/join.js"), was = live.cluster;
		const at = ["10.0.0.1:7070", "[fd00::1]:7070", "127.0.0.1:7070", "[::1]:7070"].map(join => {
			live.cluster = { ...was, join };
			return command();
		});
		live.cluster = was;
		return at.join("|");
	})()`); got != "shoal node --join 10.0.0.1:7070 --bind ADDRESS:7070 --cluster-key key --model bus|shoal node --join [fd00::1]:7070 --bind ADDRESS:7070 --cluster-key key --model bus||" {
		t.Errorf("the commands to join are %q", got)
	}
	b.to("cluster")
	for _, width := range []int64{1280, 1024, 800, 390} {
		b.size(width, 800)
		b.fits("the cluster")
		for n := 5; n <= 9; n++ { // number of figures
			rows := value[[]int](b, `(async () => {
				const { facts, fact } = await import("/web/js/facts.js"), place = facts(), rows = {};
				document.querySelector(".facts").parentElement.append(place.box);
				place.draw([...Array(%d).keys()].map(i => fact("name", i)));
				for (const e of place.box.children) rows[e.offsetTop] = (rows[e.offsetTop] || 0) + 1;
				place.box.remove();
				return Object.values(rows);
			})()`, n)
			if slices.Max(rows)-rows[len(rows)-1] >= len(rows) || width == 1280 && n == 8 && len(rows) > 1 {
				t.Errorf("%d figures are in rows of %v at %d pixels", n, rows, width)
			}
		}
		if tall := value[string](b, `[...document.querySelectorAll(".foot .share")].filter(e => e.getBoundingClientRect().height > 26).map(e => e.innerText).join()`); tall != "" {
			t.Errorf("at %d pixels the foot of a card breaks: %s", width, tall)
		}
	}
	b.size(1360, 850)
	heads := value[string](b, `[...document.querySelectorAll(".chart")].map(e => e.innerText.replace(/\s+/g, " ")).find(s => s.startsWith("Process memory"))`)
	if !strings.Contains(heads, "all processes") || !strings.Contains(heads, "weights and caches") {
		t.Errorf("the chart of memory reads %q", heads)
	}
	if got := value[string](b, `(async () => {
		const { chart } = await import("/web/js/chart.js");
		const c = chart("x", [{ name: "all", value: () => 500, cls: "b" }, { name: "part", value: () => 70, cls: "a" }], String, { main: 0 });
		c.draw([{ epoch: 1 }, { epoch: 1 }]);
		return c.box.querySelector(".now").textContent;
	})()`); got != "500" {
		t.Errorf("a chart of a whole and its part is headed %s", got)
	}
	b.to("chat")
}

// words: every term that needs an explanation has one, for mouse, keyboard and touch.
func words(t *testing.T, b *browser, _ *cluster) {
	explained := map[string]bool{}
	for _, page := range []string{"chat", "cluster", "faults"} {
		b.to(page)
		if page == "chat" {
			b.press(".chats .row:nth-child(2) .open")
		}
		b.until(`document.querySelectorAll("main .term").length > 0`)
		for _, key := range value[[]string](b, `[...new Set([...document.querySelectorAll(".term")].map(e => e.dataset.term))]`) {
			at := `[data-term="` + key + `"]`
			value[bool](b, `(document.querySelector(%q).scrollIntoView({ block: "center" }), true)`, at)
			b.press(at)
			b.until(`document.querySelector("#tip").matches(":popover-open")`)
			if bad := value[string](b, `(() => {
				const box = document.querySelector("#tip").getBoundingClientRect(), text = document.querySelector("#tip").innerText;
				const inside = box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
				return text.length > 40 && inside ? "" : text + JSON.stringify(box);
			})()`); bad != "" {
				t.Errorf("%s is explained by %s", key, bad)
			}
			b.press(at)
			b.until(`!document.querySelector("#tip").matches(":popover-open")`)
			explained[key] = true
		}
	}
	for _, key := range []string{"epoch", "mapping", "socket", "store", "placement", "full", "policy", "tokens"} {
		if !explained[key] {
			t.Errorf("%s is not explained", key)
		}
	}
	b.to("cluster")
	b.until(`document.querySelector(".facts .term")`)
	b.tab(`.facts [data-term="mapping"]`)
	b.until(`document.querySelector("#tip").matches(":popover-open") && document.querySelector("#tip").innerText.includes("Reduce")`)
	value[bool](b, `new Promise(r => setTimeout(r, 2500)).then(() => true)`) // the page is redrawn every second
	if !value[bool](b, `document.activeElement.matches('[data-term="mapping"]') && document.querySelector("#tip").matches(":popover-open")`) {
		t.Error("a word loses the focus while the page is brought up to date")
	}
	b.keys("\x1b")
	b.until(`!document.querySelector("#tip").matches(":popover-open")`)
	b.to("chat")
}
