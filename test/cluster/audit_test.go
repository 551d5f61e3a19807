package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/api"
)

// invariants are the promises that every run under faults is held to. A finding
// begins with the name of the one that was broken.
var invariants = []struct{ name, what string }{
	{"I1", "no accepted job is lost"},
	{"I2", "streams have no gap and no repetition"},
	{"I3", "results are those of the undisturbed run"},
	{"I4", "nothing of an older epoch or attempt takes effect"},
	{"I5", "memory stays within the budgets"},
	{"I6", "goroutines, files and subscriptions return"},
	{"I7", "one placement an epoch, and epochs and terms only rise"},
	{"I8", "every request ends"},
	{"I9", "there is no damage that nobody did"},
	{"I10", "a result is committed once"},
}

// audit gathers what a run shows: how often each invariant was looked at, and what
// broke it.
type audit struct {
	mu      sync.Mutex
	checked map[string]int
	broken  map[string][]string

	epoch, term   uint64
	members       map[uint64]string // epoch -> nodes of its placement
	rows, wire    uint64            // of all coordinators
	rowsAt, wired uint64            // of the present one, as seen last
}

func newAudit() *audit {
	return &audit{checked: map[string]int{}, broken: map[string][]string{}, members: map[uint64]string{}}
}

// look notes that an invariant was looked at n times, with these findings.
func (a *audit) look(name string, n int, findings ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checked[name] += n
	for _, f := range findings {
		name, _, _ := strings.Cut(f, ":")
		a.broken[name] = append(a.broken[name], f)
	}
}

// sample takes one answer of /v1/cluster, in the order in which they came.
func (a *audit) sample(c api.ClusterState) {
	if c.Epoch == 0 && len(c.Nodes) == 0 {
		return // nobody answers, or nothing is placed yet
	}
	var wrong []string
	fault := func(format string, v ...any) { wrong = append(wrong, fmt.Sprintf(format, v...)) }
	var part []string
	for _, n := range c.Nodes {
		if n.KVUsedBytes+n.KVPrefix > n.KVBudgetBytes || n.KVReserved > n.KVBudgetBytes {
			fault("I5: %s uses %d bytes of cache and reserves %d, its budget is %d", n.ID, n.KVUsedBytes, n.KVReserved, n.KVBudgetBytes)
		}
		if n.Share > 0 {
			part = append(part, n.ID)
		}
	}
	a.mu.Lock()
	if c.StepRows < a.rowsAt || c.WireBytes < a.wired { // another coordinator
		a.rowsAt, a.wired = 0, 0
	}
	a.rows, a.wire = a.rows+c.StepRows-a.rowsAt, a.wire+c.WireBytes-a.wired
	a.rowsAt, a.wired = c.StepRows, c.WireBytes
	// A coordinator that has opened no epoch yet shows none.
	if c.Epoch > 0 {
		if c.Epoch < a.epoch {
			fault("I7: epoch %d after epoch %d", c.Epoch, a.epoch)
		}
		a.epoch = c.Epoch
		nodes := strings.Join(part, " ")
		if was := a.members[c.Epoch]; was != "" && nodes != "" && was != nodes && len(part) >= len(strings.Fields(was)) {
			fault("I7: epoch %d is of %s, it was of %s", c.Epoch, nodes, was)
		}
		if a.members[c.Epoch] == "" {
			a.members[c.Epoch] = nodes
		}
	}
	if c.Store != nil {
		if c.Store.Term < a.term {
			fault("I7: term %d after term %d", c.Store.Term, a.term)
		}
		a.term = c.Store.Term
	}
	a.mu.Unlock()
	a.look("I5", len(c.Nodes), wrong...)
	a.look("I7", 1)
}

// follow samples until the function that it returns is called.
func (a *audit) follow(look func() api.ClusterState) (stop func()) {
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			a.sample(look())
			select {
			case <-ended:
				a.sample(look())
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() { close(ended); <-over }
}

// returned checks that processes hold no more than before.
func (a *audit) returned(before, after api.ClusterState) {
	a.look("I6", len(after.Nodes), kept(before, after)...)
}

// kept is what processes hold beyond what they held before: figures of nodes, and
// of every node only what one held that had worked undisturbed.
func kept(before, after api.ClusterState) (wrong []string) {
	var goroutines, files, subscriptions int
	for _, n := range before.Nodes {
		goroutines, files, subscriptions = max(goroutines, n.Goroutines), max(files, n.OpenFiles), max(subscriptions, n.Subscriptions)
	}
	const slackGoroutines, slackFiles = 16, 8 // idle connections and timers come and go
	for _, n := range after.Nodes {
		if n.Goroutines > goroutines+slackGoroutines || n.OpenFiles > files+slackFiles || n.Subscriptions > subscriptions {
			wrong = append(wrong, fmt.Sprintf("I6: %s has %d goroutines, %d files and %d subscriptions; before the faults none had more than %d, %d and %d",
				n.ID, n.Goroutines, n.OpenFiles, n.Subscriptions, goroutines, files, subscriptions))
		}
		if n.KVUsedBytes != 0 {
			wrong = append(wrong, fmt.Sprintf("I6: %s holds %d bytes of cache", n.ID, n.KVUsedBytes))
		}
	}
	return wrong
}

// names are the invariants that were broken.
func (a *audit) names() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.broken {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// report says of each invariant how often it was looked at, and fails the test for
// those that were broken, or of those wanted never looked at.
func (a *audit) report(t *testing.T, wanted ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, i := range invariants {
		n, broken := a.checked[i.name], a.broken[i.name]
		if n == 0 && len(broken) == 0 && !slices.Contains(wanted, i.name) {
			continue
		}
		fmt.Fprintf(&b, "\n%5s %-55s looked at %6d times, broken %d", i.name, i.what, n, len(broken))
		if n == 0 {
			t.Errorf("%s was never looked at", i.name)
		}
		for _, f := range broken[:min(5, len(broken))] {
			t.Error(f)
		}
	}
	t.Log(b.String())
}
