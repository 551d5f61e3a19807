package cluster_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// headerLimit is how long a connection may take to send its headers; idle ones live at least that
// long.
const headerLimit = 10 * time.Second

// A cluster whose processes are limited to 64 open files answers status queries and requests while
// a hundred idle connections are open.
func TestFewFilesManyConnections(t *testing.T) {
	s := start(t, config{nodes: 2, files: 64})
	addr := strings.TrimPrefix(s.base, "http://")
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for range 100 {
		c, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
		fmt.Fprint(c, "GET /health HTTP/1.1\r\n")
	}
	for _, path := range []string{"/health", "/ready", "/v1/cluster", "/v1/cluster"} {
		began := time.Now()
		var v any
		s.getJSON(path, &v)
		if took := time.Since(began); took > headerLimit {
			t.Errorf("%s was answered after %v, when the others' time was up", path, took)
		}
	}
	if n := len(s.state().Nodes); n != 2 {
		t.Errorf("%d nodes", n)
	}
}

// The only slot of a cluster is held by a stream whose client does not read. A later request is
// answered meanwhile. Then the client reads and gets the same tokens as without the interruption.
func TestUnreadStreamGivesItsPlace(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	s := start(t, config{nodes: 2, args: []string{"--max-sequences", "1"}})
	// Without drafts: drafts from the earlier answer would end the stream before it blocks.
	body := map[string]any{"prompt": "// Package sort provides", "max_tokens": 2000, "ignore_eos": true, "temperature": 0, "speculate": "off"}
	want := s.complete(body)
	addr := strings.TrimPrefix(s.base, "http://")
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	body["stream"] = true
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		addr, len(b), b)
	testutil.Eventually(t, patience, "the stream runs", func() (bool, string) {
		st := s.state()
		return st.Running > 0, fmt.Sprintf("%d running, %d waiting", st.Running, st.Waiting)
	})
	s.complete(map[string]any{"prompt": "func add", "max_tokens": 3, "temperature": 0})
	if st := s.state(); st.Running+st.Waiting == 0 {
		t.Error("the unread stream kept its slot until its end")
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got strings.Builder
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && lines.Text() != "data: [DONE]" {
		var chunk struct{ Choices []struct{ Text string } }
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(data), &chunk) == nil && len(chunk.Choices) > 0 {
			got.WriteString(chunk.Choices[0].Text)
		}
	}
	if lines.Text() != "data: [DONE]" || got.String() != want {
		t.Errorf("the stream is not the undisturbed one: %d of %d bytes, last line %q, %v", got.Len(), len(want), lines.Text(), lines.Err())
	}
}

// TestManyUnreadStreams: 300 clients open streams without reading. A later request is answered
// while they all exist.
func TestManyUnreadStreams(t *testing.T) {
	testlevel.NeedFull(t)
	const clients = 300
	s := start(t, config{nodes: 2})
	addr := strings.TrimPrefix(s.base, "http://")
	b, err := json.Marshal(map[string]any{"prompt": "// Package sort provides", "max_tokens": 2000,
		"ignore_eos": true, "temperature": 0, "stream": true, "speculate": "off"})
	if err != nil {
		t.Fatal(err)
	}
	alone := time.Now()
	s.complete(map[string]any{"prompt": "func add", "max_tokens": 3, "temperature": 0})
	undisturbed := time.Since(alone)
	for range clients {
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			addr, len(b), b)
	}
	testutil.Eventually(t, patience, "all places are taken, and the rest waits", func() (bool, string) {
		st := s.state()
		return st.Running == 64 && st.Running+st.Waiting == clients, fmt.Sprintf("%d running, %d waiting", st.Running, st.Waiting)
	})
	for i := range 3 {
		began := time.Now()
		s.complete(map[string]any{"prompt": "func add", "max_tokens": 3, "temperature": 0})
		took, st := time.Since(began), s.state()
		t.Logf("a completion of 3 tokens took %.2f s (%.2f s alone), %d streams ran and %d waited",
			took.Seconds(), undisturbed.Seconds(), st.Running, st.Waiting)
		if i == 0 && st.Running+st.Waiting < clients/2 {
			t.Errorf("%d streams are left: it was answered because they ended", st.Running+st.Waiting)
		}
	}
}

// complete returns the text of a completion.
func (s *system) complete(body map[string]any) string {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.http.Post(s.base+"/v1/completions", "application/json", bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct{ Choices []struct{ Text string } }
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || len(v.Choices) != 1 {
		s.t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return v.Choices[0].Text
}
