package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/sys/fixedport"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// freePort returns a port that was free a moment ago. A restarted coordinator needs a fixed
// address.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := fixedport.Listen("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// processCluster is a cluster of separate processes that can be killed and restarted individually.
type processCluster struct {
	*httpClient
	t              testing.TB
	bin            string
	gossip, listen string
	data           string
	runs           int
	coordinator    *process
	nodes          []*process
	headArgs       []string                   // additional flags of the coordinator
	nodeArgs       []string                   // additional flags of each node
	env            func(name string) []string // additional environment of "coordinator", "n0", ...; may be nil
}

func (p *processCluster) environment(name string) []string {
	if p.env == nil {
		return nil
	}
	return p.env(name)
}

var listens = regexp.MustCompile(`API at http://`)

func startProcesses(t testing.TB, nodes int, nodeArgs ...string) *processCluster {
	return startProcessesAt(t, t.TempDir(), nodes, nodeArgs...)
}

// startProcessesAt is startProcesses with a data directory.
func startProcessesAt(t testing.TB, data string, nodes int, nodeArgs ...string) *processCluster {
	p := newProcessCluster(t, data, nodes)
	p.nodeArgs = nodeArgs
	p.start()
	return p
}

func newProcessCluster(t testing.TB, data string, nodes int) *processCluster {
	p := &processCluster{t: t, bin: built.shoal(t, ""), gossip: freePort(t), listen: freePort(t), data: data, nodes: make([]*process, nodes)}
	p.httpClient = newHTTPClient(t, "http://"+p.listen, "")
	return p
}

func (p *processCluster) start() {
	p.t.Helper()
	p.startCoordinator()
	for i := range p.nodes {
		p.startNode(i)
	}
	p.ready(startLimit)
}

func (p *processCluster) startCoordinator() {
	p.runs++
	p.coordinator = spawn(p.t, p.bin, fmt.Sprintf("coordinator-%d", p.runs), p.environment("coordinator"),
		append([]string{"coordinator", "--bind", p.gossip, "--listen", p.listen,
			"--data-dir", p.data, "--nodes", fmt.Sprint(len(p.nodes))}, p.headArgs...)...)
	p.coordinator.line(p.t, p.coordinator.err, listens, startLimit)
}

func (p *processCluster) startNode(i int) {
	p.runs++
	id := fmt.Sprintf("n%d", i)
	p.nodes[i] = spawn(p.t, p.bin, fmt.Sprintf("node-%d-%d", i, p.runs), p.environment(id),
		append([]string{"node", "--join", p.gossip, "--id", id,
			"--threads", "1"}, p.nodeArgs...)...)
}

func (p *processCluster) ready(limit time.Duration) {
	p.t.Helper()
	testutil.Eventually(p.t, limit, "a ready cluster", func() (bool, string) {
		a, err := p.try(context.Background(), "GET", "/ready", nil)
		if err != nil {
			return false, err.Error()
		}
		return a.status == 200, string(a.body)
	})
}

type jobState struct {
	ID      string          `json:"id"`
	State   string          `json:"state"`
	Attempt int             `json:"attempt"`
	Events  int             `json:"events"`
	Error   json.RawMessage `json:"error"`
	Result  json.RawMessage `json:"result"`
}

// submit repeats until the job is acknowledged. The key ensures a single job.
func (p *processCluster) submit(key string, body any, until time.Time) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	for last := error(nil); ; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			return "", fmt.Errorf("job %s was not accepted in time: %w", key, last)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		r, _ := http.NewRequestWithContext(ctx, "POST", p.base+"/v1/jobs", strings.NewReader(string(text)))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
		resp, err := p.http.Do(r)
		if last = err; err != nil {
			cancel()
			continue
		}
		var j jobState
		err = json.NewDecoder(resp.Body).Decode(&j)
		resp.Body.Close()
		cancel()
		if resp.StatusCode == http.StatusAccepted && err == nil {
			return j.ID, nil
		}
		last = fmt.Errorf("status %d, %v", resp.StatusCode, err)
	}
}

// jobEvent is a data line of a job's stream: a job.event, or the final job.end.
type jobEvent struct {
	Object  string
	Index   int
	Choice  int
	Token   *int
	Text    string
	Logprob *float32
	State   string
	Events  int
	line    string // as received
}

// attach reads the events of a job from an index on, until the stream breaks, each returns false,
// or the job has ended (over).
func (p *processCluster) attach(id string, from int, until time.Time, each func(e jobEvent) bool) (over bool, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	resp, err := p.do(ctx, "GET", fmt.Sprintf("/v1/jobs/%s/events?from=%d", id, from), nil)
	if err != nil {
		return false, nil // no server is listening
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return false, fmt.Errorf("%s: events from %d: status %d", id, from, resp.StatusCode)
	}
	for r := bufio.NewReader(resp.Body); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return false, nil // the stream broke
		}
		data, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		e := jobEvent{line: data}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return false, fmt.Errorf("%s: %q: %w", id, data, err)
		}
		if !each(e) || e.Object == "job.end" {
			return e.Object == "job.end", nil
		}
	}
}

// follow reads the events of a job until its end, reconnecting after each break, and returns them.
// A gap or a repetition is an error.
func (p *processCluster) follow(id string, until time.Time) (events []string, breaks int, err error) {
	for ; ; breaks++ {
		if time.Now().After(until) {
			return events, breaks, fmt.Errorf("%s did not end in time: %d events, %d breaks", id, len(events), breaks)
		}
		var wrong error
		over, err := p.attach(id, len(events), until, func(e jobEvent) bool {
			switch {
			case e.Object == "job.end" && e.State != "completed":
				wrong = fmt.Errorf("%s: %s", id, e.line)
			case e.Object == "job.event" && e.Index != len(events):
				wrong = fmt.Errorf("%s: index %d, want %d", id, e.Index, len(events))
			case e.Object == "job.event":
				events = append(events, e.line)
			}
			return wrong == nil
		})
		if err == nil {
			err = wrong
		}
		if over || err != nil {
			return events, breaks, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
