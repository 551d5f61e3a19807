package cluster_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// flood opens idle connections to every address and, if again is set, reopens closed ones. stop
// ends it.
func flood(at []string, each int, again bool) (opened *atomic.Int64, stop func()) {
	opened = new(atomic.Int64)
	over := make(chan struct{})
	var wg sync.WaitGroup
	for _, addr := range at {
		for range each {
			wg.Go(func() {
				for first := true; first || again; first = false {
					select {
					case <-over:
						return
					default:
					}
					c, err := net.DialTimeout("tcp", addr, time.Second)
					if err != nil {
						time.Sleep(50 * time.Millisecond)
						continue
					}
					opened.Add(1)
					end := make(chan struct{})
					go func() {
						defer close(end)
						_, _ = io.Copy(io.Discard, c)
					}()
					select {
					case <-end:
					case <-over:
					}
					_ = c.Close()
					<-end
				}
			})
		}
	}
	return opened, func() {
		close(over)
		wg.Wait()
	}
}

// askFor sends requests to the API over new connections for a while, and returns the longest
// response time.
func askFor(t *testing.T, s *system, during time.Duration) (asked int, slowest time.Duration) {
	t.Helper()
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, ask := range []func() (*http.Response, error){
			func() (*http.Response, error) { return fresh.Get(s.base + "/v1/cluster") },
			func() (*http.Response, error) {
				return fresh.Post(s.base+"/v1/completions", "application/json", strings.NewReader(`{"prompt": "once", "max_tokens": 4}`))
			},
		} {
			began := time.Now()
			resp, err := ask()
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK && err == nil {
					err = fmt.Errorf("status %d", resp.StatusCode)
				}
			}
			if err != nil {
				t.Errorf("question %d: %v", asked, err)
			}
			asked++
			slowest = max(slowest, time.Since(began))
		}
	}
	return asked, slowest
}

// TestStrangersLeaveFiles: processes limited to 128 open files are flooded with idle connections on
// every port except the API's. The API accepts new connections, running streams keep their tokens,
// and a node that dies meanwhile is replaced.
func TestStrangersLeaveFiles(t *testing.T) {
	testlevel.NeedLong(t)
	s := start(t, config{nodes: 3, files: 128, args: []string{"--data-dir", t.TempDir()}})
	reqs := streaming(4, 1000)
	want, _ := s.open(reqs).wait(t)
	before := s.state()
	for _, again := range []bool{true, false} {
		flow := s.open(reqs)
		flow.reach(t, 20)
		opened, stop := flood(s.listeners(t), 100, again)
		if !again {
			time.Sleep(time.Second)
			if err := syscall.Kill(s.children()[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		asked, slowest := askFor(t, s, 6*time.Second)
		got, _ := flow.wait(t)
		stop()
		same(t, fmt.Sprintf("in a flood, opened again: %v", again), reqs, want, got)
		t.Logf("%d questions, the slowest answer took %v; strangers opened %d connections, again: %v", asked, slowest, opened.Load(), again)
	}
	if after := s.state(); after.Recoveries != before.Recoveries+1 || len(after.Nodes) != 2 {
		t.Errorf("%d recoveries, %d nodes, want those of one death", after.Recoveries-before.Recoveries, len(after.Nodes))
	}
}
