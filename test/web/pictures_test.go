package web_test

import (
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"
)

var (
	pictures = flag.String("pictures", "", "write pictures of the page into this `folder`, of a cluster with more to do")
	scale    = flag.Float64("scale", 1, "pixels of a picture for one of the page")
)

// shot saves a screenshot, if requested.
func shot(b *browser, name string) {
	b.t.Helper()
	if *pictures == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// pause waits for charts to fill before a screenshot.
func pause() {
	if *pictures != "" {
		time.Sleep(12 * time.Second)
	}
}
