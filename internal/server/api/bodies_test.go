package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// dial opens a connection that sends text and nothing more.
func dial(t *testing.T, url, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Unfinished bodies together stay within the budget. Small requests and requests for the state pass
// meanwhile. The memory of a body is free after its end.
func TestUnfinishedBodiesStayWithinABudget(t *testing.T) {
	const whole = 1 << 20
	s := newServer(t, &servertest.Engine{Script: servertest.Hello},
		func(c *Config) { c.Limits.BodiesBytes, c.Limits.BodyBytes = whole, 600<<10 })
	url, stop, done := listen(t, s)
	var conns []net.Conn
	for range 12 {
		conns = append(conns, dial(t, url, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Type: application/json\r\nContent-Length: 500000\r\n\r\n"+strings.Repeat(" ", 490000)))
	}
	servertest.Eventually(t, "the bodies use up most of the budget", func() bool { return s.BodiesInUse() > whole/2 })
	if a := post(t, url+"/v1/completions", completion(nil)); a.status != 200 {
		t.Errorf("a small request: %d %s", a.status, a.raw)
	}
	for _, path := range []string{"/health", "/ready", "/v1/cluster"} {
		if a := get(t, url+path); a.status != 200 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	if used := s.BodiesInUse(); used > whole {
		t.Errorf("bodies take %d bytes, the budget is %d", used, whole)
	}
	refused := 0
	for _, c := range conns { // the rest of each
		_, _ = io.WriteString(c, strings.Repeat(" ", 10000))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == 503 {
			refused++
		}
		c.Close()
	}
	if refused == 0 || refused == len(conns) {
		t.Errorf("%d of %d bodies were refused", refused, len(conns))
	}
	servertest.Eventually(t, "the budget is free again", func() bool { return s.BodiesInUse() == 0 })
	stop()
	<-done
}

// A client that sends a whole body before it reads gets a 413, not a broken pipe, with
// and without Content-Length.
func TestTooLargeABodyGetsAReadableAnswer(t *testing.T) {
	s := newServer(t, &servertest.Engine{})
	url, stop, done := listen(t, s)
	body := strings.Repeat("a", 33<<20)
	for name, text := range map[string]string{
		"length":  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"chunked": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
	} {
		conn := dial(t, url, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+text)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != 413 || !strings.Contains(string(b), "33554432 bytes") {
			t.Errorf("%s: %d %s %v", name, resp.StatusCode, b, err)
		}
		conn.Close()
	}
	stop()
	<-done
}

// Idle connections are closed for new ones that send requests. When all connections carry a request,
// the server still answers requests for its health, and refuses work.
func TestConnectionsAreBounded(t *testing.T) {
	const limit = 8
	e := &servertest.Engine{Hold: servertest.Always}
	s := newServer(t, e, func(c *Config) { c.Limits.Connections = limit })
	url, stop, done := listen(t, s)
	healthy := func(when string) {
		t.Helper()
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for _, path := range []string{"/health", "/ready", "/v1/cluster"} {
			resp, err := c.Get(url + path)
			if a := read(t, resp, err); a.status != 200 {
				t.Errorf("%s, %s: %d", when, path, a.status)
			}
		}
	}
	for range 100 {
		dial(t, url, "GET /health HTTP/1.1\r\nHost:")
	}
	healthy("100 idle connections")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for taken := 0; taken < limit; { // the connection of a question may not be gone yet
		if openStream(t, ctx, url+"/v1/completions", completion(M{"max_tokens": 3})).StatusCode == 200 {
			taken++
		}
	}
	healthy("all carry a stream")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x"}`))
	if a := read(t, resp, err); a.status != 503 || at(t, a.body, "error", "code") != "overloaded" {
		t.Errorf("one more request: %d %s", a.status, a.raw)
	}
	cancel()
	e.WaitCancelled(t, limit)
	stop()
	<-done
}
