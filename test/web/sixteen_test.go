package web_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/shoal-llm/shoal/client/wire"
)

// TestSixteen shows sixteen nodes with different shares, using a user's API key. Each node is drawn
// with its load, and operator actions prompt for an operator's key.
func TestSixteen(t *testing.T) {
	path := chromium(t)
	keys := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(keys, []byte(`{"keys": [{"name": "ann", "key": "sk-user"}, {"name": "ops", "key": "sk-operator", "role": "operator"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, "--nodes", "16", "--threads", "1", "--share", "3,3,3,3,1,1,1,1,1,1,1,1,1,1,1,1",
		"--api-keys", keys, "--prefix-disk", filepath.Join(t.TempDir(), "prefixes"))
	c.key = "sk-user"
	b := open(t, path)
	b.size(1360, 850)
	b.do("log in", chromedp.Navigate(strings.Replace(c.url, "http://", "http://ann:sk-user@", 1)))
	b.do("open the page", chromedp.Navigate(c.url+"/#cluster"))
	b.mu.Lock()
	b.problems = nil // Chromium loads no styles from a URL with a password
	b.mu.Unlock()
	b.until(`document.querySelectorAll(".socket").length === 16`)
	b.fits("the page of sixteen")

	// The weights of this model are divided into sixteenths, so some of these nodes have none.
	var s wire.ClusterState
	c.get("/v1/cluster", &s)
	shares := map[string]float64{}
	for _, n := range s.Nodes {
		if n.Share > 0 {
			shares[n.ID] = n.Share
		}
	}
	if len(s.Nodes) != 16 || len(shares) < 8 || shares["node-0"] < 1.9*shares["node-4"] {
		t.Fatalf("%d nodes, and shares that are not uneven: %v", len(s.Nodes), shares)
	}
	b.until(`document.querySelectorAll(".slice").length === %d`, len(shares))
	for _, id := range []string{"node-0", "node-4"} {
		width := value[float64](b, `[...document.querySelectorAll(".slice")].find(e => e.querySelector("b").textContent === %q).getBoundingClientRect().width / document.querySelector(".cutbar").getBoundingClientRect().width`, id)
		if width < 0.7*shares[id] || width > 1.4*shares[id] {
			t.Errorf("%s has %.3f of the weights, and %.3f of the bar", id, shares[id], width)
		}
	}
	c.load()
	b.until(`document.querySelectorAll(".seqs .is").length > 0 && document.querySelector(".meter .m-a").getBoundingClientRect() && /files/i.test(document.querySelector(".facts").innerText)`)
	b.until(`[...document.querySelectorAll(".chart")].every(c => c.querySelector(".line"))`)
	pause()
	shot(b, "sixteen")

	const drain = `.socket[data-node="node-5"] .foot button`
	b.press(drain)
	b.until(`document.querySelector("dialog[open]")?.innerText.includes("role operator")`)
	b.expect("403")
	b.press("dialog button.quiet")
	b.until(`!document.querySelector("dialog") && document.querySelector('.socket[data-node="node-5"] .bad').innerText.includes("role operator")`)
	b.press(drain)
	b.until(`document.querySelector("dialog[open]")`)
	b.expect("403")
	b.write("dialog input", "sk-wrong")
	b.press("dialog button.main")
	b.until(`document.querySelector("dialog[open]") && document.querySelector("dialog input").value === ""`)
	b.expect("401")
	b.write("dialog input", "sk-operator")
	b.press("dialog button.main")
	b.until(`document.querySelector('.socket[data-node="node-5"] .state').textContent === "drained"`)
	b.press(drain)
	b.until(`document.querySelector('.socket[data-node="node-5"] .state').textContent === "ready"`)
	b.size(390, 800)
	b.fits("the page of sixteen on a phone")
	b.calm()
}
