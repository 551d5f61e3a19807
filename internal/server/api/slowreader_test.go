package api

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// The server reports to the engine a stream whose client does not read, and its end.
func TestUnreadStreamIsReported(t *testing.T) {
	e := &servertest.Engine{}
	s := newServer(t, e, func(c *Config) { c.Limits.UnreadAfter, c.MaxModelLen = 20*time.Millisecond, 1<<20 })
	url, stop, done := listen(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resp := openStream(t, ctx, url+"/v1/completions", completion(M{"max_tokens": 1 << 19}))
	id := e.Last(t).ID
	reported := func(want bool) func() bool {
		return func() bool {
			e.Mu.Lock()
			defer e.Mu.Unlock()
			got, known := e.UnreadNow[id]
			return known && got == want
		}
	}
	servertest.Eventually(t, "the stream is unread", reported(true))
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, resp.Body) // until the client leaves
	}()
	servertest.Eventually(t, "the stream is read", reported(false))
	cancel()
	<-read
	stop()
	<-done
	e.Live.Wait()
}
