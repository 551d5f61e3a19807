package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

const (
	formEvery = 2 * time.Second
	keepLimit = 20 * time.Second
	moveLimit = 10 * time.Minute
)

// Run waits until two of the named processes are connected, then moves the single-copy store into a
// replicated one. From then on it maintains that one.
func (g *Members) Run() {
	t := time.NewTicker(formEvery)
	defer t.Stop()
	var late lateness
	for {
		g.op.Lock()
		why := g.formOrTend()
		g.op.Unlock()
		if late.log(why, time.Now()) {
			g.log.Warn(why)
		}
		select {
		case <-t.C:
		case <-g.names.changed:
		case <-g.ctx.Done():
			return
		}
	}
}

// startPatience is how long the replica processes may take to connect before the log reports them
// as missing.
const startPatience = 20 * time.Second

// lateness decides when to log an obstacle: once, after it has lasted for a while.
type lateness struct {
	since  time.Time // when the obstacles began; zero: there is none
	logged string
}

// log reports whether to log the obstacle why now; "" means that there is none.
func (l *lateness) log(why string, now time.Time) bool {
	if why == "" {
		*l = lateness{}
		return false
	}
	if l.since.IsZero() {
		l.since = now
	}
	if why == l.logged || now.Sub(l.since) < startPatience {
		return false
	}
	l.logged = why
	return true
}

// formOrTend returns the current obstacle, or "" if there is none or no process was named.
func (g *Members) formOrTend() string {
	if why := g.reopen(); why != "" {
		return why
	}
	if g.store.alone == nil {
		if err := g.tend(); err != nil && g.ctx.Err() == nil {
			return "updating the members of the store failed: " + err.Error()
		}
		return ""
	}
	p, err := g.propose(g.gossip.Members())
	if err != nil && g.names.empty() {
		return ""
	}
	if err != nil {
		return "jobs have one copy, on this machine: " + err.Error()
	}
	if err := g.replicate(p); err != nil {
		return "the store was not replicated; trying again: " + err.Error()
	}
	return ""
}

// reopen opens the jobs again if they could not be opened after a move. It returns the obstacle, or "".
func (g *Members) reopen() string {
	if g.store.jobsOpen() || g.ctx.Err() != nil {
		return ""
	}
	if err := g.open(); err != nil {
		return "the job store cannot be opened; trying again: " + err.Error()
	}
	g.log.Info("the job store is open again")
	return ""
}

// propose chooses the members among the named processes that are connected: this process, then standbys, then nodes.
func (g *Members) propose(connected []gossip.Member) (*plan, error) {
	kept, _ := g.store.replica.now() // it was started by an earlier attempt
	if kept != nil && !slices.ContainsFunc(kept.Members, func(m member) bool { return m.Name != kept.Self && !g.names.has(m.Name) }) {
		return kept, nil
	}
	var others []gossip.Member
	for _, m := range connected {
		if m.Meta.Store != "" && m.Name != g.store.replica.name && m.Meta.State == gossip.Ready && g.names.has(m.Name) {
			others = append(others, m)
		}
	}
	switch {
	case len(others) >= wanted-1:
	case kept != nil:
		return kept, nil
	default:
		return nil, fmt.Errorf("the store needs two more processes that are named ("+options.Name("store-nodes")+
			" or shoal store add) and have a "+options.Name("data-dir")+"; named: %s; connected: %d", g.names, len(others))
	}
	standby := func(m gossip.Member) int {
		if m.Meta.Role == string(security.RoleCoordinator) {
			return 0
		}
		return 1
	}
	slices.SortFunc(others, func(a, b gossip.Member) int {
		if d := standby(a) - standby(b); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	members := []member{{Name: g.store.replica.name, Route: g.store.replica.addr}}
	for _, m := range others[:wanted-1] {
		members = append(members, member{Name: m.Name, Route: m.Meta.Store})
	}
	if kept != nil {
		return proposal(kept, members), nil
	}
	last, err := readProposal(g.store.path)
	if err != nil {
		return nil, err
	}
	p := proposal(last, members)
	return p, writeProposal(g.store.path, p) // before another process has it
}

// proposal returns the plan of a store that is not formed yet. last is the plan of the attempt before, or nil. Processes
// that have accepted it keep that store and no other, so a plan with other members is a revision of it.
func proposal(last *plan, members []member) *plan {
	if last == nil {
		var id [6]byte
		_, _ = rand.Read(id[:]) // never fails
		return &plan{ID: hex.EncodeToString(id[:]), Self: members[0].Name, Members: members}
	}
	if slices.Equal(last.Members, members) {
		return last
	}
	p := last.next()
	p.Self, p.Members = members[0].Name, members
	p.Removed = slices.DeleteFunc(append(p.Removed, last.Members...), func(m member) bool { return slices.Contains(members, m) })
	return p
}

// proposalFile has the plan that this process has sent to others and does not keep itself yet.
const proposalFile = "store-proposal.json"

func readProposal(dir string) (*plan, error) {
	b, err := os.ReadFile(filepath.Join(dir, proposalFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	p := new(plan)
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", proposalFile, err)
	}
	return p, nil
}

func writeProposal(dir string, p *plan) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return wholefile.Write(filepath.Join(dir, proposalFile), b, 0o600)
}

// replicate forms the store of a plan and moves the existing data into it. The lease record moves
// last. Until it is written the old store is authoritative, afterwards the new one.
func (g *Members) replicate(p *plan) error {
	ctx, cancel := context.WithTimeout(g.ctx, moveLimit)
	defer cancel()
	s := g.store
	byRoute := map[string]gossip.Member{}
	for _, m := range g.gossip.Members() {
		byRoute[m.Meta.Store] = m
	}
	for _, x := range p.Members {
		if x.Name == p.Self {
			continue
		}
		m, ok := byRoute[x.Route]
		if !ok {
			return fmt.Errorf("store: %s, which shall keep a copy at %s, is not connected", x.Name, x.Route)
		}
		if err := g.send(ctx, m, p); err != nil {
			return err
		}
	}
	if err := s.replica.keep(ctx, p); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(s.path, proposalFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("store: %w", err)
	}
	reach, stop := context.WithTimeout(ctx, opLimit) // so that the operator can name others meanwhile
	lease, nc, err := s.replicated(reach, nil)
	stop()
	if err != nil {
		return err
	}
	_, bus := s.replica.now()
	to, err := openLog(bus, wanted)
	if err != nil {
		nc.Close()
		return err
	}
	files, err := s.openFiles()
	if err != nil {
		_ = to.Close()
		nc.Close()
		return err
	}
	began := time.Now()
	s.front.Mount.Refuse("The job store is being replicated.", 2*time.Second)
	s.CloseJobs()
	messages, err := g.move(ctx, to, files, lease)
	if err != nil {
		_ = to.Close()
		_ = files.Close()
		nc.Close()
		if again := s.reopenJobs(); again != nil {
			s.front.Mount.Refuse("The job store cannot be opened: "+again.Error()+".", time.Minute)
		}
		return err
	}
	s.nc.Close()
	s.alone.Shutdown()
	s.mu.Lock()
	s.alone, s.lease, s.nc, s.kind = nil, lease, nc, "replicated"
	s.mu.Unlock()
	if err := s.retireSingle(p); err != nil {
		g.log.Warn("the old store could not be moved aside", "error", err)
	}
	if err := s.takeFiles(files, true); err != nil {
		g.log.Warn("the files could not be moved aside", "error", err)
	}
	if err := s.use(to, files); err != nil {
		s.front.Mount.Refuse("The job store cannot be read: "+err.Error()+".", time.Minute)
		return err
	}
	s.startJobs()
	g.log.Info("the store is replicated", "store", p.ID, "members", p.routes(), "messages", messages, "took",
		time.Since(began).Round(time.Millisecond))
	return nil
}

// move copies the files, the log, and then the lease.
func (g *Members) move(ctx context.Context, to journal.Log, shared *files.Shared, lease register) (int, error) {
	if err := shared.Clear(ctx); err != nil { // left by an earlier attempt
		return 0, err
	}
	if err := g.store.takeFiles(shared, false); err != nil {
		return 0, err
	}
	from, err := openLog(g.store.alone, 1)
	if err != nil {
		return 0, err
	}
	n, err := journal.Copy(ctx, from, to)
	if err = errors.Join(err, from.Close()); err != nil {
		return 0, err
	}
	g.store.moveEvents(ctx, lease)
	return n, g.store.election.move(ctx, lease)
}

// retireSingle moves the single-copy store aside, because it must never be read again.
func (s *Store) retireSingle(p *plan) error {
	if err := os.Rename(s.singleDir(), filepath.Join(s.path, "jetstream-before-"+p.ID)); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}
