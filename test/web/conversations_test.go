package web_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// conversations are renamed, searched, exported and imported; an invalid file is refused.
func conversations(t *testing.T, b *browser, _ *cluster) {
	const rows = `[...document.querySelectorAll(".chats .row")]`
	if n := value[int](b, rows+`.length`); n != 2 {
		t.Fatalf("%d conversations", n)
	}
	value[bool](b, `(document.querySelector('.chats .row button[aria-label^="Rename"]').click(), true)`)
	b.focused(".chats input.open")
	b.keys("Sorting\r")
	b.until(`%s[0].innerText.trim() === "Sorting"`, rows)
	value[bool](b, `(document.querySelector('.chats .row button[aria-label^="Rename"]').click(), true)`)
	b.keys("Another\x1b")
	b.until(`!document.querySelector(".chats input.open") && %s[0].innerText.trim() === "Sorting"`, rows)

	b.write(".chats .seek", "REVERSE function")
	b.until(`%s.length === 1 && %[1]s[0].innerText.includes("reverses")`, rows)
	exported := value[string](b, `(async () => {
		let kept = null;
		const make = URL.createObjectURL;
		URL.createObjectURL = blob => { kept = blob; return "data:,"; };
		[...document.querySelectorAll(".files button")].find(e => e.textContent === "Export").click();
		URL.createObjectURL = make;
		return kept.text();
	})()`)
	if !strings.Contains(exported, "reverses a string") || strings.Contains(exported, "Package sort") {
		t.Errorf("of one that was searched for the export is %s", exported)
	}
	b.empty(".chats .seek")
	b.until(`%s.length === 2`, rows)

	take := func(text, want string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "chats.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b.do("choose a file", chromedp.SetUploadFiles(chromedp.CSS(".chats input[type=file]"), []string{file}))
		b.until(`document.querySelector(".chats p[role=status]").textContent.startsWith(%q)`, want)
	}
	take(exported, "All of them are here already.")
	take(strings.ReplaceAll(exported, "reverses a string", "<b>turns</b> a string"), "1 conversation added.")
	b.until(`%s.length === 3 && document.querySelectorAll(".chats .row b").length === 0`, rows)
	for _, bad := range []string{`{"a": 1}`, `not JSON`, `[]`, `null`, `{"format": "shoal-chats", "chats": 7}`} {
		take(bad, "This file holds no conversations")
	}
	take(`{"format": "shoal-chats", "version": 1, "chats": [null, 7, {}, {"turns": "x"}, {"turns": [{"role": "system", "content": "x"}, {"role": "user", "content": 7}]}]}`, "All of them are here already.")
	if n := value[int](b, rows+`.length`); n != 3 {
		t.Errorf("%d conversations after files that hold none", n)
	}
	// Another tab stores a conversation and deletes one: this tab shows that, and stores both with its own changes.
	value[bool](b, `(() => {
		const list = JSON.parse(localStorage.getItem("shoal.chats")).filter(c => !c.title.includes("<b>"));
		list.unshift({ id: "other", title: "Elsewhere", turns: [{ role: "user", content: "x" }], at: Date.now() });
		localStorage.setItem("shoal.chats", JSON.stringify(list));
		return dispatchEvent(new StorageEvent("storage", { key: "shoal.chats" }));
	})()`)
	b.until(`%s.length === 3 && %[1]s[0].innerText.trim() === "Elsewhere"`, rows)
	value[bool](b, `(localStorage.setItem("shoal.chats", localStorage.getItem("shoal.chats").replace("Elsewhere", "Anywhere").replace('"id":"other"', '"id":"third"')), true)`)
	value[bool](b, `(document.querySelector('.chats .row button[aria-label="Rename Sorting"]').click(), true)`)
	b.keys("Sorted\r")
	b.until(`%s.length === 3 && %[1]s.some(e => e.innerText.trim() === "Anywhere")`, rows)
	value[bool](b, `(document.querySelector('.chats .row button[aria-label="Delete Anywhere"]').click(), true)`)
	b.settings(`{}`)
	if n := value[int](b, rows+`.length`); n != 2 || !value[bool](b, rows+`.some(e => e.innerText.trim() === "Sorted")`) {
		t.Errorf("%d conversations after a reload", n)
	}
}
