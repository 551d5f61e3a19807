package api

import (
	"context"
	"io"
	"testing"
	"time"
)

// The engine hears of a stream whose client does not read, and hears when it reads again.
func TestUnreadStreamIsTold(t *testing.T) {
	e := &fakeEngine{}
	s := newServer(t, e, func(c *Config) { c.Limits.UnreadAfter, c.MaxModelLen = 20*time.Millisecond, 1<<20 })
	url, stop, done := listen(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resp := openStream(t, ctx, url+"/v1/completions", completion(M{"max_tokens": 1 << 19}))
	id := e.last(t).ID
	told := func(want bool) func() bool {
		return func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			got, heard := e.unread[id]
			return heard && got == want
		}
	}
	eventually(t, "the stream is unread", told(true))
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, resp.Body) // until the client leaves
	}()
	eventually(t, "the stream is read", told(false))
	cancel()
	<-read
	stop()
	<-done
	e.live.Wait()
}

// A write that ends in time tells nothing, also when the timer of it is late.
func TestReaderTellsOnlyOfAWriteUnderWay(t *testing.T) {
	var told []bool
	r := &slowReader{after: time.Hour, notify: func(yes bool) { told = append(told, yes) }}
	r.begin()
	r.end()
	r.late()
	r.begin()
	r.late()
	r.late()
	r.end()
	if len(told) != 2 || !told[0] || told[1] {
		t.Errorf("told %v", told)
	}
}
