package web_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// lost: while the coordinator is unreachable, the page turns grey and shows its age and no rate, and a
// question stays in its field. When the coordinator is back, the page is as before.
func lost(t *testing.T, b *browser, _ *cluster) {
	b.size(1360, 850)
	b.settings(`{"temperature":"0"}`)
	b.do("open the page", chromedp.Navigate(value[string](b, `location.origin + location.pathname`)+"#cluster"))
	b.until(`document.querySelectorAll(".socket").length >= 3`)
	value[bool](b, `(window.reached = window.fetch, window.fetch = () => Promise.reject(new TypeError("Failed to fetch")), true)`)
	b.until(`document.querySelector(".lost-line")?.innerText.includes("cannot be reached") && /as of \d+ s ago/.test(document.querySelector(".lost-line").innerText)`)
	b.until(`[...document.querySelectorAll(".socket:not(.gone) .state")].every(e => /^ready \d+ s ago$/.test(e.textContent))`)
	shot(b, "lost")
	if grey := value[string](b, `getComputedStyle(document.querySelector(".sockets")).filter`); !strings.Contains(grey, "grayscale") {
		t.Errorf("the nodes are drawn as ever: %s", grey)
	}
	if rate := value[string](b, `[...document.querySelectorAll(".fact")].find(e => e.innerText.startsWith("Tokens a second")).querySelector("b").textContent`); rate != "\u2013" {
		t.Errorf("the rate is %s", rate)
	}
	b.to("jobs")
	b.until(`document.querySelector(".jobs .error").textContent === "The coordinator cannot be reached."`)
	b.to("chat")
	b.press(`.chats .new`)
	b.write("#prompt", "Write a Go function that reverses a string.")
	b.press(".composer button.main")
	b.until(`%s?.querySelector(".error")?.innerText.startsWith("The coordinator cannot be reached. Your question is kept.")`, last)
	value[bool](b, `(window.fetch = window.reached, true)`)
	b.until(`!document.body.classList.contains("stale")`)
	b.press(`button[aria-label="Answer again"]`)
	if text := b.whole(); !strings.Contains(text, "func reverse") {
		t.Errorf("asked again, the answer is %q", text)
	}
	for seconds, want := range map[string]string{"0.006": "", "0.19": "", "0.2": "60.0", "2": "6.0"} {
		if got := value[string](b, `import("/web/js/format.js").then(m => m.pace(12, %s))`, seconds); got != want {
			t.Errorf("12 tokens in %s s are %q a second, want %q", seconds, got, want)
		}
	}
}
