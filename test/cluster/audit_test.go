package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
)

// invariants are checked in every run with faults. A finding starts with the name of the violated
// one.
var invariants = []struct{ name, what string }{
	{"I1", "no accepted job is lost"},
	{"I2", "streams have no gap and no repetition"},
	{"I3", "results are those of the undisturbed run"},
	{"I4", "nothing of an older epoch or attempt takes effect"},
	{"I5", "memory stays within the budgets"},
	{"I6", "goroutines, files and subscriptions return"},
	{"I7", "one placement an epoch, and epochs and terms only rise"},
	{"I8", "every request ends"},
	{"I9", "/health reports no damage except that of a fault"},
	{"I10", "a result is committed once"},
}

// audit collects how often each invariant was checked in a run, and the violations.
type audit struct {
	mu      sync.Mutex
	checked map[string]int
	broken  map[string][]string

	epoch, term   uint64
	members       map[uint64]string // epoch -> nodes of its placement
	rows, wire    uint64            // sums over all coordinators
	rowsAt, wired uint64            // last values of the present coordinator
}

func newAudit() *audit {
	return &audit{checked: map[string]int{}, broken: map[string][]string{}, members: map[uint64]string{}}
}

// look records n checks of an invariant and their findings.
func (a *audit) look(name string, n int, findings ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checked[name] += n
	for _, f := range findings {
		name, _, _ := strings.Cut(f, ":")
		a.broken[name] = append(a.broken[name], f)
	}
}

// sample checks one answer of /v1/cluster. Answers must be passed in order.
func (a *audit) sample(c wire.ClusterState) {
	if c.Epoch == 0 && len(c.Nodes) == 0 {
		return // no answer, or nothing placed yet
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
	// A coordinator without an epoch shows 0.
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

// follow samples until the returned function is called.
func (a *audit) follow(look func() wire.ClusterState) (stop func()) {
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

// returned checks that processes hold no more resources than before.
func (a *audit) returned(before, after wire.ClusterState) {
	a.look("I6", len(after.Nodes), kept(before, after)...)
}

// kept returns the resources that processes hold beyond the earlier ones. It compares the figures of
// nodes. For a new node it allows the resources of one undisturbed node.
func kept(before, after wire.ClusterState) (wrong []string) {
	var goroutines, files, subscriptions int
	for _, n := range before.Nodes {
		goroutines, files, subscriptions = max(goroutines, n.Goroutines), max(files, n.OpenFiles), max(subscriptions, n.Subscriptions)
	}
	const slackGoroutines, slackFiles = 16, 8 // idle connections and timers come and go
	for _, n := range after.Nodes {
		if n.Goroutines > goroutines+slackGoroutines || n.OpenFiles > files+slackFiles || n.Subscriptions > subscriptions {
			wrong = append(wrong,
				fmt.Sprintf("I6: %s has %d goroutines, %d files and %d subscriptions; before the faults none had more than %d, %d and %d",
					n.ID, n.Goroutines, n.OpenFiles, n.Subscriptions, goroutines, files, subscriptions))
		}
		if n.KVUsedBytes != 0 {
			wrong = append(wrong, fmt.Sprintf("I6: %s holds %d bytes of cache", n.ID, n.KVUsedBytes))
		}
	}
	return wrong
}

// names returns the violated invariants.
func (a *audit) names() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.broken {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// report logs how often each invariant was checked. It fails the test for violated ones, and for
// wanted ones that were never checked.
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
