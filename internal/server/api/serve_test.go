package api

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// listen runs Serve and returns its address, the end of its context, and its result.
func listen(t *testing.T, s *Server) (url string, stop context.CancelFunc, done chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done = make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return "http://" + l.Addr().String(), cancel, done
}

func TestDrainLetsStreamsFinish(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, Gate: make(chan struct{})}
	s := newServer(t, e, func(c *Config) { c.KeepAlive = 5 * time.Millisecond })
	url, stop, done := listen(t, s)
	resp := openStream(t, context.Background(), url+"/v1/chat/completions", chat(nil))
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil { // it is under way
		t.Fatal(err)
	}
	stop()
	servertest.Eventually(t, "not ready while draining", s.Draining)
	a := post(t, url+"/v1/completions", completion(nil))
	checkError(t, a, 503, "server_error", "", "shutting_down")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if a := get(t, url+"/ready"); a.status != 503 {
		t.Errorf("/ready while draining: %d", a.status)
	}
	close(e.Gate)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	ev := events(t, r)
	if ev[len(ev)-1].data != "[DONE]" {
		t.Errorf("cut off: %v", ev)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	e.Live.Wait()
}

func TestDrainEndsSlowRequests(t *testing.T) {
	e := &servertest.Engine{Delay: time.Millisecond, Hold: servertest.Always}
	s := newServer(t, e, func(c *Config) { c.Grace = 20 * time.Millisecond })
	url, stop, done := listen(t, s)
	resp := openStream(t, context.Background(), url+"/v1/completions", completion(M{"max_tokens": 500}))
	whole := make(chan answer, 1)
	go func() {
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":500}`))
		whole <- read(t, resp, err)
	}()
	servertest.Eventually(t, "two requests run", func() bool {
		e.Mu.Lock()
		defer e.Mu.Unlock()
		return len(e.Requests) == 2
	})
	stop()
	ev := events(t, resp.Body)
	last := ev[len(ev)-1]
	if last.json["error"] == nil || at(t, last.json, "error", "code") != "shutting_down" {
		t.Errorf("last event %q", last.data)
	}
	if a := <-whole; a.status != 503 || at(t, a.body, "error", "code") != "shutting_down" {
		t.Errorf("%d %s", a.status, a.raw)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	e.WaitCancelled(t, 2)
	e.Live.Wait()
}

func TestReadyWhileDraining(t *testing.T) {
	s := newServer(t, &servertest.Engine{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = s.Serve(ctx, l)
	}
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	req, _ := http.NewRequest("GET", "/ready", nil)
	s.Handler().ServeHTTP(rec, req)
	if rec.Code != 503 || !strings.Contains(rec.Body.String(), "draining") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestLargeHeadersAreRefused(t *testing.T) {
	s := newServer(t, &servertest.Engine{}, func(c *Config) { c.Limits.HeaderBytes = 1 << 10 })
	url, stop, done := listen(t, s)
	if a := request(t, "GET", url+"/version", "X-Big", strings.Repeat("a", 8<<10)); a.status != 431 {
		t.Errorf("status %d", a.status)
	}
	stop()
	<-done
}

// A body that stops, or of which a byte comes now and then, ends its request: where it
// is read and where nobody reads it.
func TestSlowBodyTimesOut(t *testing.T) {
	s := newServer(t, &servertest.Engine{}, func(c *Config) {
		c.Limits.ReadTimeout, c.Limits.ReadHeaderTimeout = 30*time.Millisecond, servertest.Timeout
	})
	url, stop, done := listen(t, s)
	for to, status := range map[string]string{"POST /v1/completions": "408", "GET /version": "200", "DELETE /nothing": "404"} {
		for _, drips := range []bool{false, true} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte(to + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n{"))
			var sender sync.WaitGroup
			if drips {
				sender.Go(func() {
					for err := error(nil); err == nil; time.Sleep(time.Millisecond) {
						_, err = conn.Write([]byte(" "))
					}
				})
			}
			_ = conn.SetReadDeadline(time.Now().Add(servertest.Timeout))
			line, err := bufio.NewReader(conn).ReadString('\n')
			if !strings.Contains(line, status) {
				t.Errorf("%s, drips %v: answer %q, %v, want %s", to, drips, line, err, status)
			}
			conn.Close()
			sender.Wait()
		}
	}
	stop()
	<-done
}

// The time that a body may take does not end a long generation.
func TestReadTimeoutSparesLongRequests(t *testing.T) {
	t.Parallel() // it mostly waits
	e := &servertest.Engine{Script: servertest.Tokens(engine.FinishLength, servertest.TokOne,
		servertest.TokOne, servertest.TokOne, servertest.TokOne), Delay: 800 * time.Millisecond}
	url := serve(t, e, func(c *Config) {
		c.Limits.ReadTimeout, c.Limits.WriteTimeout = 2*time.Second, 2500*time.Millisecond // a busy machine still reads and writes in time
	}) + "/v1/completions"
	if a := post(t, url, completion(nil)); a.status != 200 {
		t.Error(a.raw)
	}
	ev := stream(t, url, completion(nil))
	if ev[len(ev)-1].data != "[DONE]" {
		t.Error("cut off")
	}
}
