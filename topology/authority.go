package topology

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Node is a process that offers a socket.
type Node struct {
	ID          string
	Incarnation uint64
	Share       float64 // asked for; zero: none was
	Speed       float64 // as the node has measured it, in units of a share; zero: it has not
	Read        float64 // bytes a second that its threads read, as it has measured; zero: it has not
	Syncs       Syncs   // likewise
	Products    Products
	Threads     Threads
	Distance    float64 // seconds from the coordinator's process to the node's, one way; zero: not known
	KVBudget    int64   // bytes
	ModelHash   string
	Epoch       uint32 // the newest epoch the node has seen
	Wire        uint32 // wire version that it and the coordinator speak; zero: the coordinator's
}

// AuthorityPhase is where the authority stands with the current epoch.
type AuthorityPhase string

const (
	Gathering AuthorityPhase = "gathering" // too few nodes
	Recording AuthorityPhase = "recording" // the placement is being written down
	Loading   AuthorityPhase = "loading"   // sockets read their slices
	Joining   AuthorityPhase = "joining"   // sockets form the group
	Serving   AuthorityPhase = "serving"
	Over      AuthorityPhase = "over" // another coordinator has taken over
)

// Effects tell the shell what to do. They are to be carried out in order.
type (
	// Effect is one of the types below.
	Effect interface{ effect() }
	// Withdraw: no step may start until the next Serve; comes before a new Load.
	Withdraw struct {
		Reason string
		Kind   string // one of Kinds
		Node   string // whose doing it is; "": of none, or nobody knows
		Grown  bool   // nothing went wrong: nodes joined and are to have a share
	}
	// Record: write the placement down, under the lease; nobody is told of it
	// before Recorded. Only the newest one matters.
	Record struct {
		Placement Placement
		Nodes     []Node
	}
	// LoadSlices: ask every node of the placement to load, in rank order.
	LoadSlices struct {
		Placement Placement
		Nodes     []Node
	}
	// FormGroup: ask every node to join the group of the epoch.
	FormGroup struct {
		Epoch uint32
		Nodes []Node
	}
	// Serve: the placement works; steps may start.
	Serve struct {
		Placement Placement
		Nodes     []Node
	}
	// RetireNode: tell a node that is not part of the newest epoch to free what it holds.
	RetireNode struct {
		Node  Node
		Epoch uint32
	}
)

// Kinds of reasons for which a serving placement is withdrawn.
const (
	KindLost      = "node_lost"
	KindRestarted = "node_restarted" // a node is a new process
	KindDrained   = "node_drained"
	KindFenced    = "node_fenced"
	KindRefused   = "node_refused" // a node turned out to be of a build that cannot take part
	KindJoined    = "node_joined"
	KindStep      = "step_failed"
	KindDeposed   = "lease_lost"
)

// Kinds lists them.
func Kinds() []string {
	return []string{KindLost, KindRestarted, KindDrained, KindFenced, KindRefused, KindJoined, KindStep, KindDeposed}
}

func (Withdraw) effect()   {}
func (Record) effect()     {}
func (LoadSlices) effect() {}
func (FormGroup) effect()  {}
func (Serve) effect()      {}
func (RetireNode) effect() {}

// AuthorityConfig are the rules of an Authority.
type AuthorityConfig struct {
	Shape Shape
	// Mapping of all placements; empty: chosen from what the nodes have measured, and
	// WeightBytes, the size of one weight.
	Mapping     Mapping
	WeightBytes float64
	// Nodes is how many nodes the first placement waits for; zero: whoever is
	// there once Settle has passed without a change. One that comes after another
	// coordinator waits so for patience times Settle: the rest may be lost for good.
	Nodes  int
	Settle time.Duration
	// Backoff is the pause before a failed placement is tried again; it doubles
	// up to 32 times itself.
	Backoff time.Duration
	// Quarantine is how long a node is first left out that others do not hear; it
	// doubles up to 32 times itself. Default 5 s.
	Quarantine time.Duration
	// Pause is how long a node is first left out that held up the others. Default 10 s.
	Pause time.Duration
	// Shares are the operator's word on nodes, whatever they say themselves.
	Shares map[string]float64
	// MaxNodes bounds the sockets of a placement.
	MaxNodes  int
	ModelHash string
	// After is the newest epoch that was ever written down: the first one is
	// higher. What nodes tell of theirs counts too, for coordinators without a
	// store.
	After uint32
	// Leased: epochs are written down under a lease. A node that is past ours then
	// follows another coordinator, and is none of this one's business.
	Leased bool
	// Drained are nodes that an earlier coordinator drained, by incarnation.
	Drained map[string]uint64
}

const patience = 5

// Authority decides which nodes make up which epoch: the one pure state machine
// that numbers placements. Time comes in by Tick; answers of nodes by Answered.
type Authority struct {
	cfg         AuthorityConfig
	now         time.Duration
	phase       AuthorityPhase
	epoch       uint32 // of the newest placement
	told        uint32 // newest epoch that was written down, and told to nodes
	seen        uint32 // newest epoch that a node has told of: the next one is higher
	place       Placement
	part        []Node // nodes of the current placement, rank order
	nodes       map[string]Node
	refused     map[string]refusal    // nodes that are up and cannot take part
	waiting     map[string]bool       // nodes that have not answered in this phase
	drained     map[string]uint64     // incarnation of nodes that are to take no part
	unreachable [][2]string           // pairs that do not hear each other, as far as answered in this phase
	quarantined map[string]quarantine // nodes that others did not hear
	mappings    map[int]Mapping       // what was chosen, by number of nodes
	capped      map[string]string     // nodes of the placement that have less than they say
	fenced      map[string]Fence      // nodes that held up the others, and those that came back
	blamed      map[string]blame      // nodes that broken epochs are blamed on
	excused     time.Duration         // until then failures of one node alone are blamed on nobody
	probeAt     time.Duration         // when fenced nodes may be asked again
	changed     time.Duration         // last change of membership
	retryAt     time.Duration
	tries       int
	served      bool
	reason      string
}

// NewAuthority starts with no nodes.
func NewAuthority(cfg AuthorityConfig) *Authority {
	cfg.MaxNodes = cmp.Or(cfg.MaxNodes, 64)
	cfg.Quarantine = cmp.Or(cfg.Quarantine, 5*time.Second)
	cfg.Pause = cmp.Or(cfg.Pause, 10*time.Second)
	drained := maps.Clone(cfg.Drained)
	if drained == nil {
		drained = map[string]uint64{}
	}
	return &Authority{cfg: cfg, phase: Gathering, seen: cfg.After, nodes: map[string]Node{}, refused: map[string]refusal{}, drained: drained, quarantined: map[string]quarantine{}, fenced: map[string]Fence{}, blamed: map[string]blame{}, mappings: map[int]Mapping{}, reason: "no node has joined yet"}
}

// Phase says where the authority stands, and in a few words why.
func (a *Authority) Phase() (AuthorityPhase, string) { return a.phase, a.reason }

// Epoch is the number of the newest placement.
func (a *Authority) Epoch() uint32 { return a.epoch }

// Placement is the newest placement and its nodes in rank order.
func (a *Authority) Placement() (Placement, []Node) { return a.place, a.part }

// Refused lists nodes that are up but cannot take part, and why.
func (a *Authority) Refused() map[string]string {
	out := map[string]string{}
	for id, r := range a.refused {
		out[id] = r.why
	}
	return out
}

type refusal struct {
	incarnation uint64
	why         string
}

// Refuse tells of a node that is there and cannot take part.
func (a *Authority) Refuse(id string, incarnation uint64, why string) []Effect {
	if a.phase == Over {
		return nil
	}
	a.refused[id] = refusal{incarnation, why}
	kind, reason := KindLost, fmt.Sprintf("node %s is gone", id)
	if n, ok := a.nodes[id]; ok && n.Incarnation == incarnation {
		kind, reason = KindRefused, fmt.Sprintf("node %s is refused: %s", id, why)
	}
	out := a.drop(id, kind, reason)
	if a.phase == Gathering && len(a.ready()) == 0 {
		return append(out, a.start()...) // says it
	}
	return out
}

// Known lists the nodes that are up, by id.
func (a *Authority) Known() []Node {
	return slices.SortedFunc(maps.Values(a.nodes), func(x, y Node) int { return strings.Compare(x.ID, y.ID) })
}

// Up tells of a node that is there. A known id with another incarnation is a
// new process: what the old one held is gone.
func (a *Authority) Up(n Node) []Effect {
	if a.phase == Over {
		return nil
	}
	delete(a.refused, n.ID)
	if n.ModelHash != a.cfg.ModelHash {
		return a.Refuse(n.ID, n.Incarnation, fmt.Sprintf("serves model %.12s, the cluster serves %.12s: give it the same weights and config, and restart it", n.ModelHash, a.cfg.ModelHash))
	}
	old, known := a.nodes[n.ID]
	a.nodes[n.ID] = n
	a.seen = max(a.seen, n.Epoch)
	if known && old.Incarnation == n.Incarnation {
		return nil
	}
	if a.drained[n.ID] != n.Incarnation {
		delete(a.drained, n.ID)
	}
	if a.fenced[n.ID].Incarnation != n.Incarnation {
		delete(a.fenced, n.ID)
	}
	a.changed = a.now
	out := a.replan(KindRestarted, n.ID, fmt.Sprintf("node %s joined", n.ID), a.takesPart(n.ID))
	if a.phase == Serving {
		// It comes back from an epoch that went on without it, and may be a spare
		// for long: what it still holds must go, also if an earlier coordinator
		// counted further than this one has come.
		out = append(out, RetireNode{Node: n, Epoch: a.past()})
	}
	return out
}

// Down tells that a process is gone. If it is not the one that is known by this
// id, that has no effect: numbers of processes have no order.
func (a *Authority) Down(id string, incarnation uint64) []Effect {
	if r, ok := a.refused[id]; ok && r.incarnation == incarnation {
		delete(a.refused, id)
	}
	if n, ok := a.nodes[id]; !ok || n.Incarnation != incarnation {
		return nil
	}
	return a.drop(id, KindLost, fmt.Sprintf("node %s is gone", id))
}

// drop forgets the process that is known by this id.
func (a *Authority) drop(id, kind, reason string) []Effect {
	if _, ok := a.nodes[id]; !ok || a.phase == Over {
		return nil
	}
	delete(a.nodes, id)
	a.changed = a.now
	if a.phase == Gathering && len(a.ready()) == 0 {
		return a.start() // says that nobody is here
	}
	if !a.takesPart(id) {
		return nil
	}
	return a.replan(kind, id, reason, true)
}

// Drain takes a node that is up out of the placement: its sequences and shares
// move to the others, while it still runs, and it is told when it holds nothing
// any more. It takes no part again until another process has its name. last: it
// is the last one, so there is nobody to move to; then nothing changes.
func (a *Authority) Drain(id string, incarnation uint64) (out []Effect, last bool) {
	n, ok := a.nodes[id]
	if !ok || n.Incarnation != incarnation || a.phase == Over {
		return nil, false
	}
	if len(a.ready()) == 1 && a.ready()[0].ID == id {
		return nil, true
	}
	a.drained[id] = incarnation
	if a.takesPart(id) {
		return a.replan(KindDrained, id, fmt.Sprintf("node %s drains", id), true), false
	}
	return []Effect{RetireNode{Node: n, Epoch: a.past()}}, false
}

// Undrain lets a drained node take part again, after Settle. false: it is not drained.
func (a *Authority) Undrain(id string) bool {
	n, ok := a.nodes[id]
	if !ok || a.drained[id] != n.Incarnation || a.phase == Over {
		return false
	}
	delete(a.drained, id)
	a.changed = a.now
	return true
}

// past is the epoch up to which a node that takes no part is to forget.
func (a *Authority) past() uint32 {
	if a.cfg.Leased {
		return max(a.told, a.cfg.After)
	}
	return max(a.told, a.seen)
}

// Drained lists the nodes that take no part since they were drained.
func (a *Authority) Drained() map[string]uint64 { return a.drained }

// ready are the nodes that may take part, by id. A slow node is better than none.
func (a *Authority) ready() []Node {
	all := slices.DeleteFunc(a.Known(), a.out)
	if r := slices.DeleteFunc(slices.Clone(all), a.isFenced); len(r) > 0 {
		return r
	}
	return slices.DeleteFunc(all, func(n Node) bool { return a.fenced[n.ID].Hung })
}

// out tells that a node is up and is to take no part.
func (a *Authority) out(n Node) bool { return a.drained[n.ID] == n.Incarnation || a.isQuarantined(n) }

// Answered tells how a node answered LoadSlices or FormGroup of an epoch. An
// error of a node that is still up is tried again after a pause.
func (a *Authority) Answered(epoch uint32, id string, err error) []Effect {
	if epoch != a.epoch || !a.waiting[id] {
		return nil
	}
	var cut *Unreachable
	if a.phase == Joining && errors.As(err, &cut) && len(cut.Nodes) > 0 { // who else is shows when all have answered
		for _, other := range cut.Nodes {
			a.unreachable = append(a.unreachable, [2]string{id, other})
		}
		err = nil
	}
	if err != nil {
		a.tries++
		reason := fmt.Sprintf("%s at node %s: %v", a.phase, id, err)
		if errors.Is(err, ErrWeights) && a.served { // others may have good files
			if n, ok := a.nodes[id]; ok && a.spares(n) {
				if out := a.fence(n, Fence{Reason: err.Error()}); out != nil {
					return out
				}
			}
		}
		a.reason = reason
		return a.fail()
	}
	delete(a.waiting, id)
	if len(a.waiting) > 0 {
		return nil
	}
	if a.phase == Loading {
		a.enter(Joining)
		return []Effect{FormGroup{Epoch: a.epoch, Nodes: a.part}}
	}
	if len(a.unreachable) > 0 {
		a.tries++
		a.leaveOut()
		return a.fail()
	}
	for _, n := range a.part {
		delete(a.quarantined, n.ID)
	}
	a.phase, a.reason, a.tries, a.served = Serving, "", 0, true
	return []Effect{Serve{Placement: a.place, Nodes: a.part}}
}

// Broken tells that a step of an epoch failed: the epoch is over.
func (a *Authority) Broken(epoch uint32, reason string) []Effect {
	if epoch != a.epoch || a.phase != Serving {
		return nil
	}
	a.reason = reason
	return append([]Effect{Withdraw{Kind: KindStep, Reason: reason}}, a.start()...)
}

// Tick moves the clock, which never goes back.
func (a *Authority) Tick(now time.Duration) []Effect {
	a.now = max(a.now, now)
	var out []Effect
	if a.phase != Over {
		out = a.probes()
	}
	if a.phase == Gathering && len(a.nodes) > 0 && a.now >= a.retryAt {
		return append(out, a.start()...)
	}
	if a.phase == Serving && a.grew() && a.now-a.changed >= a.cfg.Settle {
		a.reason = "nodes joined"
		out = append(append(out, Withdraw{Kind: KindJoined, Reason: a.reason, Grown: true}), a.start()...)
	}
	return out
}

// grew reports that nodes wait to take part in a serving placement.
func (a *Authority) grew() bool { return len(a.part) < min(len(a.ready()), a.cfg.MaxNodes) }

func (a *Authority) takesPart(id string) bool {
	return a.phase != Gathering && slices.ContainsFunc(a.part, func(n Node) bool { return n.ID == id })
}

// replan reacts to a change of membership. A serving placement that still
// stands is left alone until Settle has passed.
func (a *Authority) replan(kind, node, reason string, broken bool) []Effect {
	if a.phase == Serving && !broken {
		return nil
	}
	a.reason = reason
	var out []Effect
	if a.phase == Serving {
		out = append(out, Withdraw{Kind: kind, Node: node, Reason: reason})
	}
	return append(out, a.start()...)
}

func (a *Authority) fail() []Effect {
	a.phase, a.waiting = Gathering, nil
	a.retryAt = a.now + a.cfg.Backoff<<min(a.tries-1, 5)
	return nil
}

// start opens a new epoch if there are enough nodes.
func (a *Authority) start() []Effect {
	a.phase, a.waiting = Gathering, nil // answers to what is given up here must not count
	want := max(1, a.cfg.Nodes)
	if a.served || a.cfg.After > 0 && a.now-a.changed >= patience*a.cfg.Settle {
		want = 1
	}
	if n := len(a.ready()); n < want {
		a.reason = fmt.Sprintf("%d of %d nodes are here", n, want)
		if len(a.refused) > 0 {
			a.reason += fmt.Sprintf(", and %d are refused (shoal status says why)", len(a.refused))
		}
		return nil
	}
	if a.cfg.Nodes == 0 && !a.served && a.now-a.changed < a.cfg.Settle {
		a.reason = "waiting for more nodes to join"
		return nil
	}
	part := a.choose()
	members, shares := make([]Member, len(part)), a.shares(part)
	for i, n := range part {
		members[i] = Member{ID: n.ID, Share: shares[i]}
	}
	a.epoch = max(a.epoch, a.seen) + 1
	p, err := Place(a.epoch, a.mapping(part), a.cfg.Shape, members)
	if err != nil {
		a.tries++
		a.reason = err.Error()
		return a.fail()
	}
	a.place, a.part, a.phase = p, part, Recording
	return []Effect{Record{Placement: p, Nodes: part}}
}

// Recorded tells that the placement of an epoch is written down under the lease:
// now nodes may hear of it.
func (a *Authority) Recorded(epoch uint32) []Effect {
	if epoch != a.epoch || a.phase != Recording {
		return nil
	}
	a.told = epoch
	a.enter(Loading)
	out := []Effect{LoadSlices{Placement: a.place, Nodes: a.part}}
	for _, n := range a.Known() {
		if !slices.ContainsFunc(a.part, func(m Node) bool { return m.ID == n.ID }) {
			out = append(out, RetireNode{Node: n, Epoch: a.epoch})
		}
	}
	return out
}

// Depose ends this authority: another coordinator has the lease. Nothing follows.
func (a *Authority) Depose(reason string) []Effect {
	serving := a.phase == Serving
	a.phase, a.reason, a.waiting = Over, reason, nil
	if serving {
		return []Effect{Withdraw{Kind: KindDeposed, Reason: reason}}
	}
	return nil
}

// choose keeps the ranks of nodes that took part before, so that the least
// moves; newcomers follow by id.
func (a *Authority) choose() []Node {
	var part []Node
	ready := a.ready()
	seen := map[string]bool{}
	for _, old := range a.part {
		if i := slices.IndexFunc(ready, func(n Node) bool { return n.ID == old.ID }); i >= 0 {
			part = append(part, ready[i])
			seen[old.ID] = true
		}
	}
	for _, n := range ready {
		if !seen[n.ID] {
			part = append(part, n)
		}
	}
	return part[:min(len(part), a.cfg.MaxNodes)]
}

func (a *Authority) enter(p AuthorityPhase) {
	a.phase, a.unreachable = p, nil
	a.waiting = map[string]bool{}
	for _, n := range a.part {
		a.waiting[n.ID] = true
	}
}
