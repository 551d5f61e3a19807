package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestHalfClosed: a client that closes its side before the answer is complete gets an error. An
// empty body with the status 200 would look like an answer.
func TestHalfClosed(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"x"}]}`,
		"/v1/completions":      `{"prompt":"x","stream":true}`,
		"/v1/messages":         `{"max_tokens":9,"messages":[{"role":"user","content":"x"}]}`,
		"/api/chat":            `{"model":"fake/model","messages":[{"role":"user","content":"x"}]}`,
	} {
		gate := make(chan struct{})
		e := &servertest.Engine{Script: servertest.Hello, Gate: gate}
		url := serve(t, e)
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			path, len(body), body)
		servertest.Eventually(t, "the engine has the request", func() bool {
			e.Mu.Lock()
			defer e.Mu.Unlock()
			return len(e.Requests) == 1
		})
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(servertest.Timeout))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != apierr.StatusClientClosedRequest || err != nil || !strings.Contains(string(b), "closed the connection") {
			t.Errorf("%s: %d %q %v", path, resp.StatusCode, b, err)
		}
		e.WaitCancelled(t, 1)
		c.Close()
	}
}

// TestHalfClosedStream: a stream that has begun ends with an error, not as if it were whole.
func TestHalfClosedStream(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, Hold: servertest.Always}
	url := serve(t, e)
	const body = `{"stream":true,"messages":[{"role":"user","content":"x"}]}`
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	_ = c.SetReadDeadline(time.Now().Add(servertest.Timeout))
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, "Hello") {
		t.Fatalf("%q %v", line, err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), `"code":"client_closed_request"`) || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("%q %v", rest, err)
	}
}
