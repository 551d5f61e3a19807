package cluster_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// headerLimit is how long a connection may take to send its headers: less than that the
// idle ones live for sure.
const headerLimit = 10 * time.Second

// A cluster whose processes may open 64 files answers while a hundred connections are
// open that ask nothing: to the questions for its state, and to a request.
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
