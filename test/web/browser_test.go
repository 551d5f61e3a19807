package web_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// patience is the deadline of every wait.
const patience = 60 * time.Second

// browser is a Chromium with one tab. It records errors of the page.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// names under which systems install it
var names = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}

// chromium finds a browser. Without one the test is skipped with a message; in CI it fails.
func chromium(t *testing.T) string {
	t.Helper()
	path := os.Getenv("SHOAL_CHROMIUM")
	for _, name := range names {
		if path == "" {
			path, _ = exec.LookPath(name)
		}
	}
	if path == "" {
		why := "no browser is on the PATH (" + strings.Join(names, ", ") + "; or name one in SHOAL_CHROMIUM): apt-get install chromium"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		fmt.Fprintln(os.Stderr, "*** SKIPPED: the page is not tested: "+why)
		t.Skip(why)
	}
	return path
}

// open starts a browser.
func open(t *testing.T, path string) *browser {
	t.Helper()
	// Works as root and without a network.
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(1360, 860), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	alloc, end := chromedp.NewExecAllocator(context.Background(), opts...)
	b := &browser{t: t}
	ctx, cancel := chromedp.NewContext(alloc)
	b.ctx = ctx
	messages, logged := chromedp.Console(ctx), make(chan struct{})
	go func() {
		defer close(logged)
		for m, err := range messages {
			if err != nil {
				return
			}
			switch m.Type {
			case "error", "warning", "assert", chromedp.ConsoleException:
				b.mu.Lock()
				b.problems = append(b.problems, fmt.Sprint(m.Type, ": ", m.Text, " ", m.URL, ":", m.Line))
				b.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { cancel(); end(); <-logged })
	return b
}

// calm fails the test after any error in the page: exceptions, console errors and warnings,
// violations of the content security policy, failed requests.
func (b *browser) calm() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Error(p)
	}
	b.problems = nil
}

// expect waits for a problem that a test has caused, and removes it.
func (b *browser) expect(word string) {
	b.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		b.mu.Lock()
		n := len(b.problems)
		b.problems = slices.DeleteFunc(b.problems, func(p string) bool { return strings.Contains(p, word) })
		found := len(b.problems) < n
		b.mu.Unlock()
		if found {
			return
		}
	}
	b.t.Errorf("the browser did not complain of %s", word)
}

// do runs actions and names the step if they fail.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.fail(what, err)
	}
}

func (b *browser) fail(what string, err error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	b.calm()
	b.t.Fatalf("%s: %v; the page says:\n%s", what, err, text)
}

// value evaluates a JavaScript expression and awaits a promise.
func value[T any](b *browser, expression string, args ...any) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](fmt.Sprintf(expression, args...), chromedp.EvalAwaitPromise))
	if err != nil {
		b.fail(expression, err)
	}
	return v
}

// until waits until an expression is true.
func (b *browser) until(condition string, args ...any) {
	b.t.Helper()
	condition = fmt.Sprintf(condition, args...)
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool]("Boolean("+condition+")",
		chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(patience))); err != nil {
		b.fail("wait for "+condition, err)
	}
}

// press clicks the first element that matches a selector, once it is visible. If the page draws the element
// again before the click, press finds the new one.
func (b *browser) press(selector string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "node with given id") {
			b.fail("press "+selector, err)
		}
	}
}

// write types into a field.
func (b *browser) write(selector, text string) {
	b.t.Helper()
	b.do("write into "+selector, chromedp.SendKeys(chromedp.CSS(selector), text, chromedp.NodeVisible))
}

// empty clears a field, like selecting all and deleting.
func (b *browser) empty(selector string) {
	b.t.Helper()
	value[bool](b, `(() => {
		const field = document.querySelector(%q);
		field.value = "";
		return field.dispatchEvent(new Event("input"));
	})()`, selector)
}

// choose selects an option of a list.
func (b *browser) choose(selector, option string) {
	b.t.Helper()
	if !value[bool](b, `(() => {
		const list = document.querySelector(%q), has = [...list.options].some(o => o.value === %q);
		list.value = %[2]q;
		list.dispatchEvent(new Event("change"));
		return has;
	})()`, selector, option) {
		b.t.Fatalf("%s has no option %s", selector, option)
	}
}

// to opens one of the four pages.
func (b *browser) to(name string) {
	b.t.Helper()
	b.press(`nav a[href="#` + name + `"]`)
	b.until(`document.querySelector('nav a[aria-current]')?.hash === "#%s"`, name)
}
