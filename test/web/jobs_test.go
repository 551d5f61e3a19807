package web_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// jobs: a job is queued and its answer is read, another one is cancelled, a batch is uploaded and its
// results appear.
func jobs(t *testing.T, b *browser, c *cluster) {
	b.settings(`{"temperature":"0"}`)
	b.to("jobs")
	b.write("#job", "Write a Go function that reverses a string.")
	b.press(".newjob button")
	b.until(`document.querySelector("[data-job] .chip.on")?.textContent === "completed"`)
	if row := value[string](b, `document.querySelector("[data-job] .what").innerText`); !strings.Contains(row, "Write a Go function that reverses a string.") || !strings.Contains(row, "func reverse(s string)") {
		t.Errorf("the row of the job reads %q", row)
	}
	b.press("[data-job] button")
	b.until(`document.querySelector(".result")?.innerText.includes("completed, ")`)
	if text := value[string](b, `document.querySelector(".result .text").innerText`); !strings.Contains(text, "func reverse") {
		t.Errorf("the result reads %q", text)
	}
	b.settings(`{"form":"text","temperature":"0"}`)
	b.write("#job", "// Package sort provides")
	b.do("many tokens", chromedp.SetValue(chromedp.CSS(`.newjob input`), "4000"))
	b.press(".newjob button")
	b.until(`document.querySelector("[data-job] .chip")?.textContent === "running"`)
	value[bool](b, `(window.kept = [document.querySelector("[data-job] td:last-child button"), document.querySelector("[data-job] td.num").textContent], true)`)
	b.until(`document.querySelector("[data-job] td.num").textContent !== window.kept[1]`)
	if !value[bool](b, `window.kept[0].isConnected`) {
		t.Error("a button goes when its row is brought up to date: a press that has begun is lost")
	}
	b.press("[data-job] td:last-child button")
	b.until(`document.querySelector("[data-job] .chip")?.textContent === "cancelled"`)

	file := filepath.Join(t.TempDir(), "batch.jsonl")
	line := `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"fry","prompt":"func add(a, b int) int {","max_tokens":8}}` + "\n"
	const files = `fetch("/v1/files").then(r => r.json()).then(l => l.data.length)`
	if err := os.WriteFile(file, []byte("not a request\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := value[int](b, files)
	b.do("choose another file", chromedp.SetUploadFiles(chromedp.CSS(".upload input"), []string{file}))
	b.press(".upload button")
	b.until(`document.querySelector(".jobs .error").textContent.startsWith("The first line of the file is not a request")`)
	if n := value[int](b, files); n != before {
		t.Errorf("%d files before a file that is no batch, and %d after", before, n)
	}
	if err := os.WriteFile(file, []byte("\ufeff\n"+line+strings.Replace(line, `"a"`, `"b"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	b.do("choose a file", chromedp.SetUploadFiles(chromedp.CSS(".upload input"), []string{file}))
	b.press(".upload button")
	b.until(`document.querySelector("[data-batch] .chip")?.textContent === "completed" && document.querySelector("[data-batch] a[download]")`)
	results := value[string](b, `fetch(document.querySelector("[data-batch] a[download]").href).then(r => r.text())`)
	if strings.Count(results, `"custom_id"`) != 2 {
		t.Errorf("the results are %q", results)
	}
	shot(b, "jobs")
}
