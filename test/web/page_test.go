package web_test

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPage uses the page of one cluster in a real browser.
func TestPage(t *testing.T) {
	path := chromium(t)
	args := []string{"--nodes", "4"}
	if *pictures != "" {
		args = append(args, "--replicas", "1")
	}
	c := start(t, args...)
	b := open(t, path)
	b.size(1360, 850)
	b.do("open the page", chromedp.Navigate(c.url))
	b.until(`document.querySelectorAll(".fleet i").length === 4`)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *browser, *cluster)
	}{{"first", first}, {"chat", chat}, {"conversations", conversations}, {"hostile", hostile}, {"words", words},
		{"kill", kill}, {"drain", drain}, {"keyboard", keyboard}, {"jobs", jobs}, {"phone", phone}, {"lost", lost}} {
		if !t.Run(part.name, func(t *testing.T) {
			b.t, c.t = t, t
			part.run(t, b, c)
			b.calm()
		}) {
			break // later steps would run on a page in an unknown state
		}
	}
	b.t, c.t = t, t
}

// size sets the size of the window.
func (b *browser) size(width, height int64) {
	b.t.Helper()
	b.do("size", chromedp.EmulateViewport(width, height, chromedp.EmulateScale(*scale)))
}

// settings sets the page's settings in the browser storage; a reload reads them.
func (b *browser) settings(json string) {
	b.t.Helper()
	value[bool](b, `(localStorage.setItem("shoal.settings", '%s'), true)`, json)
	b.do("reload", chromedp.Reload())
	b.until(`document.querySelectorAll(".fleet i").length > 0`)
}

// last is the last answer of the conversation.
const last = `[...document.querySelectorAll(".turn.assistant")].at(-1)`

// whole waits for the end of the last answer and returns its text.
func (b *browser) whole() string {
	b.t.Helper()
	b.until(`!document.querySelector(".caret") && %s.querySelector(".figures b, .error")`, last)
	return value[string](b, last+`.querySelector(".text").innerText`)
}

// begin sends a message and waits for the first text.
func (b *browser) begin(text string, letters int) {
	b.t.Helper()
	b.write("#prompt", text)
	b.press(".composer button.main")
	b.until(`%s?.querySelector(".caret")?.innerText.length > %d`, last, letters)
}

// fits fails if anything is wider than the window.
func (b *browser) fits(what string) {
	b.t.Helper()
	if wide := value[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
		b.t.Errorf("%s is %d pixels wider than the window: %s", what, wide, value[string](b, `[...document.querySelectorAll("body *")].filter(e =>
			e.getBoundingClientRect().right > document.documentElement.clientWidth).map(e => e.tagName + "." + e.className).join(" ")`))
	}
}
