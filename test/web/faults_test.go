package web_test

import (
	"strings"
	"testing"
)

// kill: a node is killed during an answer. The page reports it, the stream continues, and its text
// equals the undisturbed one.
func kill(t *testing.T, b *browser, c *cluster) {
	b.settings(`{"form":"text","temperature":"0","max_tokens":"500"}`)
	b.press(`.chats .new`)
	b.begin("// Package sort provides", 0)
	undisturbed := b.whole()
	c.load()
	b.to("cluster")
	b.until(`document.querySelectorAll(".socket").length === 4 && document.querySelectorAll(".seqs .is").length > 0`)
	pause()
	shot(b, "before")
	b.to("chat")
	b.press(`.chats .new`)
	b.begin("// Package sort provides", 200)
	c.kill("node-2")
	b.until(`%s.querySelector(".broke")`, last)
	b.until(`document.querySelectorAll(".fleet i.gone").length === 1`)
	shot(b, "chat-kill")
	b.to("cluster")
	b.until(`document.querySelector('.socket.gone[data-node="node-2"]') && document.querySelectorAll(".slice").length === 3`)
	b.until(`/^(\d+) of \1 streams? went on/.test(document.querySelector(".socket.gone .lost")?.innerText)`)
	shot(b, "during")
	b.to("chat")
	if text := b.whole(); text != undisturbed || len(text) < 500 {
		t.Errorf("the answer reads\n%q\nundisturbed it was\n%q", text, undisturbed)
	}
	b.until(`/^node-2 is gone.*streams? of \d+ went on, silent for/.test(%s.querySelector(".broke").innerText)`, last)
	b.to("faults")
	const row = `document.querySelector('.timeline [data-kind="node_lost"]')`
	b.until(`%s?.querySelector(".chip") && !%s.classList.contains("open")`, row, row)
	cost := value[string](b, row+`.innerText`)
	for _, want := range []string{"node-2 is gone", "epoch 1 → 2", "streams went on", "longest silence", "computed again"} {
		if !strings.Contains(cost, want) {
			t.Errorf("the event does not tell of %q:\n%s", want, cost)
		}
	}
	if b.until(`document.querySelectorAll(".epoch").length === 2`); value[bool](b, `document.querySelector(".figure.bad") !== null`) {
		t.Errorf("streams failed:\n%s", cost)
	}
}

// drain: a node is drained from the page and gets a share again.
func drain(t *testing.T, b *browser, _ *cluster) {
	const node = `document.querySelector('.nodes [data-node="node-1"]')`
	b.press(`.nodes [data-node="node-1"] button`)
	b.until(`%s.querySelector(".chip").textContent === "drained"`, node)
	b.until(`document.querySelector('.timeline [data-kind="node_drained"]:not(.open) .chip')`)
	b.press(`.nodes [data-node="node-1"] button`)
	b.until(`%s.querySelector(".chip").textContent === "ready"`, node)
	b.until(`document.querySelector('.timeline [data-kind="node_joined"]:not(.open) .chip')`)
	shot(b, "after")
	if order := value[string](b, `[...document.querySelectorAll(".timeline > li")].map(e => e.dataset.kind).slice(0, 4).join(" ")`); order != "node_joined node_undrained node_drained node_lost" {
		t.Errorf("the timeline shows %s", order)
	}
}
