package web_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// keyboard: without a mouse, a question of two lines is sent, stopped and repeated, the settings
// are opened and closed, and a node is drained and undrained. The focus is visible and is not lost
// with the pressed element.
func keyboard(t *testing.T, b *browser, _ *cluster) {
	b.settings(`{"form":"text","temperature":"0","max_tokens":"4000"}`)
	b.do("leave the last chat", chromedp.Navigate(value[string](b, `location.origin + location.pathname`)+"#chat"))
	b.press(`.chats .new`)
	b.focused("#prompt")
	b.keys("// Package sort")
	b.keys("\r", chromedp.KeyModifiers(chromedp.ModifierShift))
	b.keys("// provides\r")
	b.until(`%s?.querySelector(".caret")?.innerText.length > 20`, last)
	if asked := value[string](b, `[...document.querySelectorAll(".turn.user .text")].at(-1).textContent`); asked != "// Package sort\n// provides" {
		t.Errorf("two lines were asked as %q", asked)
	}
	b.tab(`.composer button:not(.main):not(.icon):not(.chip)`) // the button Stop
	b.keys("\r")
	b.whole()
	b.focused("#prompt")
	b.tab(`button[aria-label="Answer again"]`)
	b.keys("\r")
	b.until(`%s?.querySelector(".caret")?.innerText.length > 20`, last)
	b.focused("#prompt")
	b.tab(`.composer button:not(.main):not(.icon):not(.chip)`)
	b.keys("\r")
	b.whole()

	b.tab(`button[aria-label="How to answer"]`)
	b.keys("\r")
	b.until(`document.querySelector("dialog[open]")?.contains(document.activeElement)`)
	b.keys(kb.Escape)
	b.until(`!document.querySelector("dialog")`)
	b.focused(`button[aria-label="How to answer"]`)

	// Shortcuts of the page, which do not apply inside a field.
	b.keys("?")
	b.until(`document.querySelector("dialog.help")?.contains(document.activeElement)`)
	b.keys(kb.Escape)
	b.until(`!document.querySelector("dialog")`)
	b.keys("s")
	b.until(`document.activeElement.matches("dialog [name=system]")`)
	b.keys(kb.Escape)
	b.until(`!document.querySelector("dialog")`)
	b.keys("/")
	b.focused(".chats .seek")
	value[bool](b, `(document.activeElement.blur(), true)`)
	b.keys("2")
	b.until(`location.hash === "#cluster" && document.querySelector(".sockets")`)
	b.keys("1")
	b.until(`location.hash === "#chat" && document.querySelector("#prompt")`)
	b.tab("#prompt")
	b.empty("#prompt") // the driver may send the letter of a key after the page has changed
	b.keys("n1?s/")
	if typed := value[string](b, `document.querySelector("#prompt").value`); typed != "n1?s/" {
		t.Errorf("of n1?s/ the box has %q", typed)
	}
	b.empty("#prompt")
	b.keys(kb.ArrowUp)
	b.until(`document.querySelector("#prompt").value === "// Package sort\n// provides" && document.querySelectorAll(".turn").length === 0`)
	b.keys("\r")
	b.until(`%s?.querySelector(".caret")?.innerText.length > 20`, last)
	b.keys(kb.Escape) // stops the answer
	b.whole()
	b.focused("#prompt")

	b.tab(`nav a[href="#faults"]`)
	b.keys("\r")
	b.until(`document.querySelector(".nodes")`)
	b.tab(`.skip`)
	b.keys("\r")
	b.focused("main")
	const drain = `.nodes [data-node="node-3"] button`
	for _, state := range []string{"drained", "ready"} {
		b.tab(drain)
		b.keys("\r")
		b.until(`document.querySelector('.nodes [data-node="node-3"] .chip').textContent === %q`, state)
		b.focused(drain)
	}
}

// keys sends key strokes to the focused element.
func (b *browser) keys(keys string, opts ...chromedp.KeyOption) {
	b.t.Helper()
	b.do("type "+keys, chromedp.KeyEvent(keys, opts...))
}

// focused waits until an element has a visible focus.
func (b *browser) focused(selector string) {
	b.t.Helper()
	b.until(`document.activeElement.matches(%q)`, selector)
	b.marked()
}

// tab reaches an element with the Tab key. Every stop must have a visible focus.
func (b *browser) tab(selector string) {
	b.t.Helper()
	for range 80 {
		if value[bool](b, `document.activeElement.matches(%q)`, selector) {
			return
		}
		b.keys(kb.Tab)
		b.marked()
	}
	b.t.Fatalf("the tabulator does not lead to %s", selector)
}

// marked fails unless the focused element is visibly marked: by an outline, or for the chat box by
// its border. The page itself, where the Tab order restarts, is not marked.
func (b *browser) marked() {
	b.t.Helper()
	if bad := value[string](b, `(() => {
		const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
		if (e === document.body || e.matches("main, #prompt")) return "";
		const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
		return outlined && box.right > 0 && box.width > 0 ? "" : e.outerHTML.slice(0, 200);
	})()`); bad != "" {
		b.t.Errorf("the focus is not to be seen on %s", bad)
	}
}
