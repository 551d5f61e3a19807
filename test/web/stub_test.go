package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/shoal-llm/shoal/client/wire"
)

// long is a name without a place to break a line.
var long = strings.Repeat("Qwen3_Coder.480B-A35B", 12)

// stub serves the page, with the API of a cluster that a test could not easily produce: long names, many
// jobs, and an answer that has no end until the request is cancelled.
func stub(t *testing.T) string {
	t.Helper()
	files := http.FileServer(http.Dir("../../internal/server/admin/"))
	index, err := os.ReadFile("../../internal/server/admin/web/index.html")
	if err != nil {
		t.Fatal(err)
	}
	reply := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	events := func(w http.ResponseWriter, r *http.Request, first string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, first)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	cluster := wire.ClusterState{Model: long, Policy: "full", Epoch: 7, WaitingReason: long}
	for i := range 3 {
		cluster.Nodes = append(cluster.Nodes, wire.NodeState{
			ID: fmt.Sprint(long, i), State: "ready", Share: 0.3, KVBudgetBytes: 1 << 30, Reason: long})
	}
	for range 512 {
		cluster.Sequences = append(cluster.Sequences, wire.SequenceState{Node: cluster.Nodes[0].ID, State: "decode", KVFull: 1})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(index) })
	mux.HandleFunc("/blocked", func(w http.ResponseWriter, _ *http.Request) { // the page in a browser that blocks its storage
		const block = `<head><script>Object.defineProperty(window, "localStorage", { get() { throw new DOMException("blocked", "SecurityError"); } })</script>`
		_, _ = w.Write([]byte(strings.Replace(string(index), "<head>", block, 1)))
	})
	mux.Handle("/web/", files)
	mux.HandleFunc("/v1/cluster", func(w http.ResponseWriter, _ *http.Request) { reply(w, cluster) })
	mux.HandleFunc("/v1/cluster/history", func(w http.ResponseWriter, _ *http.Request) { reply(w, map[string]any{"data": []int{}}) })
	mux.HandleFunc("/v1/events", func(w http.ResponseWriter, r *http.Request) { events(w, r, ": none\n\n") })
	mux.HandleFunc("/v1/batches", func(w http.ResponseWriter, _ *http.Request) {
		errs := map[string]any{"data": []any{map[string]string{"message": long}}}
		reply(w, map[string]any{"data": []any{map[string]any{"id": long, "status": "failed", "endpoint": "/" + long, "created_at": 1,
			"request_counts": map[string]int{"total": 9, "completed": 1, "failed": 8}, "errors": errs}}})
	})
	mux.HandleFunc("/v1/jobs", func(w http.ResponseWriter, _ *http.Request) {
		var jobs []any
		for i := range 50 {
			jobs = append(jobs, map[string]any{"id": fmt.Sprint("job-", i), "state": "dead", "events": 1234567, "attempt": 3, "created_at": 1,
				"durability": "single", "prompt_preview": long, "error": map[string]string{"message": long}})
		}
		reply(w, map[string]any{"data": jobs, "store": "ok",
			"counts": map[string]int{"queued": 123456, "running": 1234, "completed": 9876543, "dead": 4321, "cancelled": 99999}})
	})
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		events(w, r, `data: {"choices": [{"delta": {"content": "An answer without an end "}}]}`+"\n\n")
	})
	s := httptest.NewServer(mux)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// TestPageAlone uses the page without a cluster.
func TestPageAlone(t *testing.T) {
	url, b := stub(t), open(t, chromium(t))
	b.size(1360, 850)
	b.do("open the page", chromedp.Navigate(url))
	b.until(`document.querySelectorAll(".fleet i").length === 3`)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *browser)
	}{{"narrow", narrow}, {"hash", oddHash}, {"keys", keysOfFields}, {"room", room}, {"direction", direction}, {"pace", pace},
		{"blocked", blocked}} {
		t.Run(part.name, func(t *testing.T) {
			b.t = t
			part.run(t, b)
			b.calm()
		})
	}
	b.t = t
}

// narrow: long names and many jobs fit on the smallest phones.
func narrow(_ *testing.T, b *browser) {
	for _, width := range []int64{360, 320} {
		b.size(width, 640)
		for _, name := range []string{"chat", "cluster", "faults", "jobs"} {
			b.to(name)
			if name == "jobs" {
				b.until(`document.querySelectorAll("[data-job]").length === 50`)
			}
			b.fits(fmt.Sprint(name, " on ", width, " pixels"))
		}
		b.to("chat")
	}
	b.size(1360, 850)
}

// oddHash: a fragment that is no page shows the chat, and the other pages open after it.
func oddHash(_ *testing.T, b *browser) {
	value[bool](b, `(location.hash = "#constructor", true)`)
	b.until(`document.title.startsWith("Chat") && document.querySelector("#prompt")`)
	b.to("jobs")
	b.until(`document.querySelector("[data-job]")`)
	b.to("chat")
}

// keysOfFields: Escape in a field belongs to the field, and keys that an input method reads have no effect of their own.
func keysOfFields(t *testing.T, b *browser) {
	b.write("#prompt", "question\r")
	b.until(`%s?.querySelector(".caret")?.innerText.includes("without an end")`, last)
	value[bool](b, `(document.querySelector('button[aria-label^="Rename"]').click(), true)`)
	b.until(`document.activeElement.matches("input.open")`)
	value[bool](b, `document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true, cancelable: true }))`)
	if !value[bool](b, `document.querySelector("input.open") !== null`) {
		t.Error("Enter of an input method ends renaming")
	}
	value[bool](b, `document.querySelector("#prompt").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", isComposing: true, bubbles: true }))`)
	if value[bool](b, `document.querySelector("input.open") !== null`) {
		b.keys(kb.Escape)
	}
	b.until(`!document.querySelector("input.open")`)
	time.Sleep(200 * time.Millisecond)
	if !value[bool](b, `document.querySelector(".caret") !== null`) {
		t.Error("Escape in the name of a conversation, or in an input method, stops the answer")
	}
	b.do("focus", chromedp.Focus(chromedp.CSS("#prompt")))
	b.keys(kb.Escape)
	b.until(`!document.querySelector(".caret")`)
}

// room: when the browser's storage is full, as few conversations as possible are dropped.
func room(t *testing.T, b *browser) {
	kept := value[int](b, `(async () => {
		const { chats } = await import("/web/js/chats.js");
		const before = chats.list, text = "x".repeat(100000);
		chats.list = Array.from({ length: 60 }, (_, i) => ({ id: "c" + i, title: "t", at: 1, turns: [{ role: "user", content: text }] }));
		chats.write();
		const n = JSON.parse(localStorage.getItem("shoal.chats")).length;
		chats.list = before;
		chats.write();
		return n;
	})()`)
	if kept < 48 || kept >= 60 { // 5 MiB of 100 kB each
		t.Errorf("%d of 60 conversations are kept when 52 have room", kept)
	}
}

// direction: text of a right-to-left script starts at the right.
func direction(t *testing.T, b *browser) {
	got := value[string](b, `(async () => {
		const { markdown } = await import("/web/js/markdown.js");
		const box = document.createElement("div");
		box.append(...markdown("שלום, world.\n\n# مرحبا\n\n- שלום\n- b\n\n> שלום\n\n|שלום|\n|-|\n|a|\n\nplain שלום"));
		document.body.append(box);
		const out = [...box.children].map(e => e.tagName + " " + getComputedStyle(e).direction).join(", ");
		box.remove();
		const field = document.querySelector("#prompt");
		field.value = "שלום";
		const way = getComputedStyle(field).direction;
		field.value = "";
		return out + ", field " + way;
	})()`)
	if want := "P rtl, H2 rtl, UL rtl, BLOCKQUOTE rtl, TABLE rtl, P ltr, field rtl"; got != want {
		t.Errorf("the directions are %s; want %s", got, want)
	}
}

// pace: an answer that is expensive to draw does not freeze the page.
func pace(t *testing.T, b *browser) {
	if took := value[float64](b, `(async () => {
		const { markdown } = await import("/web/js/markdown.js");
		const texts = ["a_b", "**a", "_a", "*a_b"].map(s => s.repeat(8000)), began = performance.now();
		for (const s of texts) if (!markdown(s)[0].textContent.includes("a")) return -1;
		return performance.now() - began;
	})()`); took < 0 || took > 1500 {
		t.Errorf("drawing four texts of repeated marks took %.0f ms", took)
	}
	if got := value[string](b, `(async () => {
		const { markdown } = await import("/web/js/markdown.js");
		const first = text => markdown(text)[0].tagName + markdown(text).at(-1).tagName;
		return [first("- **a** b_c\n".repeat(1000)), first("# a\n"+"`+"```"+`c\n"+"a_b *c;\n".repeat(2000)+"`+"```"+`"), first("|a|b|\n|-|-|\n"+"|**a**|b_c|\n".repeat(800))].join(" ");
	})()`); got != "ULUL H2DIV TABLETABLE" {
		t.Errorf("a long list, block of code and table are drawn as %s", got)
	}
	busy := value[float64](b, `(async () => {
		const { paced } = await import("/web/js/dom.js");
		let drawn = 0;
		const draw = paced(() => { drawn++; for (const end = performance.now() + 100; performance.now() < end;); });
		const began = performance.now();
		for (; performance.now() < began + 2000; await new Promise(r => setTimeout(r, 5))) draw();
		return drawn * 100 / 2000;
	})()`)
	if busy == 0 || busy > 0.4 {
		t.Errorf("a slow drawing takes %.2f of the time", busy)
	}
}

// blocked: the page works in a browser that blocks its storage.
func blocked(t *testing.T, b *browser) {
	b.do("open", chromedp.Navigate(value[string](b, `location.origin`)+"/blocked"))
	b.until(`document.querySelectorAll(".fleet i").length === 3 && document.querySelector("#prompt")`)
	b.press("#theme")
	b.press(`button[aria-label="How to answer"]`)
	b.write(`input[name=temperature]`, "1")
	b.press(`dialog button.main`)
	b.until(`!document.querySelector("dialog")`)
	if value[string](b, `document.documentElement.dataset.theme || ""`) == "" {
		t.Error("the button for dark and light has no effect")
	}
}
