package store

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/security"
)

// offers returns connected processes that offer to keep a copy.
func offers(names ...string) (out []gossip.Member) {
	for _, name := range names {
		m := gossip.Member{Name: name}
		m.Meta.Store, m.Meta.State = name+":1", gossip.Ready
		out = append(out, m)
	}
	return out
}

func membersOf(dir string, kept *plan, named ...string) *Members {
	return &Members{names: newNames(named), store: &Store{path: dir, log: slog.New(slog.DiscardHandler),
		replica: &replica{name: "c", addr: "c:1", plan: kept}}}
}

// TestProposalKeepsItsStore: a process that has accepted a plan keeps that store and refuses any other. So the attempts to
// form a store have one ID, also after a restart of the coordinator and with other members, who get a higher revision.
func TestProposalKeepsItsStore(t *testing.T) {
	dir := t.TempDir()
	g := membersOf(dir, nil, "a", "b")
	first, err := g.propose(offers("a", "b"))
	if err != nil || first.Self != "c" || !slices.Equal(first.servers(), []string{"c", "a", "b"}) {
		t.Fatalf("%+v, %v", first, err)
	}
	for name, g := range map[string]*Members{"the next attempt": g, "after a restart": membersOf(dir, nil, "a", "b")} {
		if again, err := g.propose(offers("b", "a")); err != nil || again.ID != first.ID || again.Revision != first.Revision {
			t.Errorf("%s proposes %+v, %v after %+v", name, again, err, first)
		}
	}
	g.names.set("b", false)
	g.names.set("d", true)
	other, err := g.propose(offers("a", "b", "d"))
	if err != nil || other.ID != first.ID || other.Revision <= first.Revision || !slices.Equal(other.servers(), []string{"c", "a", "d"}) ||
		len(other.Removed) != 1 || other.Removed[0].Name != "b" {
		t.Errorf("with another member: %+v, %v", other, err)
	}
	if again, err := g.propose(offers("a", "b", "d")); err != nil || again.Revision != other.Revision {
		t.Errorf("the attempt after that: %+v, %v", again, err)
	}
}

// TestProposalOfAStartedReplica: this process keeps the plan already. A member of it that is lost for good does not stop
// the forming of the store: the operator names another process. Without that the plan stays, also after a restart that has
// forgotten the names.
func TestProposalOfAStartedReplica(t *testing.T) {
	kept := &plan{ID: "x", Self: "c", Revision: 2,
		Members: []member{{Name: "c", Route: "c:1"}, {Name: "a", Route: "a:1"}, {Name: "b", Route: "b:1"}}}
	for name, x := range map[string]struct {
		named, connected []string
		want             []string
	}{
		"as before":                   {[]string{"a", "b"}, nil, kept.servers()},
		"names are forgotten":         {nil, []string{"a", "b", "d"}, kept.servers()},
		"another one is not here yet": {[]string{"a", "d"}, []string{"a"}, kept.servers()},
		"another one":                 {[]string{"a", "d"}, []string{"a", "d"}, []string{"c", "a", "d"}},
	} {
		p, err := membersOf(t.TempDir(), kept, x.named...).propose(offers(x.connected...))
		if err != nil || p.ID != "x" || !slices.Equal(p.servers(), x.want) || (p.Revision > 2) != !slices.Equal(p.servers(), kept.servers()) {
			t.Errorf("%s: %+v, %v; want %v", name, p, err, x.want)
		}
	}
}

// TestRemovedReplica: the coordinator sends each new plan to a process that it has removed. That process has nothing left
// to remove. It refuses to be a member again before it is restarted.
func TestRemovedReplica(t *testing.T) {
	dir := t.TempDir()
	open := func() *replica {
		r, err := openReplica(t.Context(), dir, "a", hostname.Place{Bind: "127.0.0.1:0"}, security.RoleNode, security.Key{},
			slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	us, them := member{Name: "a", Route: r.addr}, member{Name: "b", Route: "127.0.0.1:1"}
	plans := []*plan{
		{ID: "x", Self: "a", Members: []member{us, them}},
		{ID: "x", Revision: 1, Members: []member{them, {Name: "c", Route: "127.0.0.1:2"}}},
		{ID: "x", Revision: 2, Members: []member{them, {Name: "d", Route: "127.0.0.1:3"}}},
	}
	for _, p := range plans {
		if err := r.keep(t.Context(), p); err != nil {
			t.Errorf("revision %d: %v", p.Revision, err)
		}
	}
	again := &plan{ID: "x", Revision: 3, Self: "a", Members: []member{us, them}}
	if err := r.keep(t.Context(), again); err == nil || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("added again: %v", err)
	}
	r.close()
	r = open()
	defer r.close()
	if p, _ := r.now(); p != nil {
		t.Errorf("after a restart it keeps %+v", p)
	}
}

// TestUnfinishedFormation: a process that ended while it formed the replicated store finds both. The single copy stays
// until the other store has answered that it has the record of the lease.
func TestUnfinishedFormation(t *testing.T) {
	for name, x := range map[string]struct {
		register *memoryRegister
		formed   bool
		fails    bool
	}{
		"not formed":              {&memoryRegister{}, false, false},
		"not formed, lost answer": {&memoryRegister{lost: 1}, false, false},
		"formed":                  {&memoryRegister{revision: 3}, true, false},
		"formed, lost answer":     {&memoryRegister{revision: 3, lost: 1}, true, false},
		"no answer":               {&memoryRegister{lost: 1 << 30}, false, true},
	} {
		s := &Store{path: t.TempDir(), log: slog.New(slog.DiscardHandler)}
		if err := os.MkdirAll(s.singleDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if x.fails {
			ctx, cancel = context.WithTimeout(t.Context(), 3*electionTick)
		}
		formed, err := s.formed(ctx, x.register, &plan{ID: "x"})
		cancel()
		_, gone := os.Stat(s.singleDir())
		if formed != x.formed || (err != nil) != x.fails || (gone != nil) != x.formed {
			t.Errorf("%s: formed %v, %v; the single copy: %v", name, formed, err, gone)
		}
	}
}

// TestJobsAreOpenedAgain: the jobs could not be opened after the store was moved, for example without a majority. They are
// opened later, and not after the coordinator has ended.
func TestJobsAreOpenedAgain(t *testing.T) {
	g := membersOf(t.TempDir(), nil)
	g.log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	g.ctx = ctx
	tries := 0
	g.open = func() error {
		if tries++; tries == 1 {
			return errLost
		}
		g.store.store = new(jobs.Store)
		return nil
	}
	for i, fails := range []bool{true, false, false} {
		if why := g.reopen(); (why != "") != fails {
			t.Errorf("attempt %d: %q", i+1, why)
		}
	}
	if !g.store.jobsOpen() || tries != 2 {
		t.Errorf("opened %d times: %v", tries, g.store.jobsOpen())
	}
	g.store.store = nil
	if cancel(); g.reopen() != "" || tries != 2 {
		t.Error("opened after the end")
	}
}

// TestMembersChangeOneAtATime: a change that waits for another one ends with its deadline.
func TestMembersChangeOneAtATime(t *testing.T) {
	g := membersOf(t.TempDir(), nil)
	g.op.Lock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.Remove(ctx, "a"); !errors.Is(err, ErrMembers) {
		t.Errorf("%v", err)
	}
	g.op.Unlock()
	if err := g.begin(t.Context()); err != nil {
		t.Error(err)
	}
}
