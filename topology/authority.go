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
	Share       float64 // requested share; zero: none requested
	Speed       float64 // measured by the node, in units of a share; zero: not measured
	Read        float64 // bytes a second that its threads read, measured; zero: not measured
	Syncs       Syncs   // measured; zero: not measured
	Products    Products
	Threads     Threads
	Distance    float64 // one-way latency from the coordinator's process in seconds; zero: unknown
	KVBudget    int64   // bytes, for the caches of all models
	Role        Role
	Device      string // graphics card that computes its socket, such as "cuda:0"; "": the CPU
	// DeviceMemory is the memory of the card in bytes.
	DeviceMemory int64
	// DeviceStep is the tokens of a step for which the card has memory, and which it computes in a short time;
	// 0: not known.
	DeviceStep  int
	ModelHash   string
	OtherHashes []string // of further models that the node can serve
	Epoch       uint32   // the newest epoch that the node has seen
	Wire        uint32   // wire version spoken with the coordinator; zero: the coordinator's own
}

// AuthorityPhase is the state of the current epoch.
type AuthorityPhase string

const (
	Gathering AuthorityPhase = "gathering" // too few nodes
	Recording AuthorityPhase = "recording" // the placement is being written to the store
	Loading   AuthorityPhase = "loading"   // sockets read their slices
	Joining   AuthorityPhase = "joining"   // sockets form the group
	Serving   AuthorityPhase = "serving"
	Over      AuthorityPhase = "over" // another coordinator has the lease
)

// Effects are actions that the shell performs in the returned order.
type (
	// Effect is one of the types below.
	Effect interface{ effect() }
	// Withdraw ends the serving placement: no step may start until the next Serve.
	Withdraw struct {
		Reason string
		Kind   string // one of Kinds
		Node   string // the node that caused it; "": no single node, or unknown
		Grown  bool   // no failure: new nodes get a share
	}
	// Record writes the placement to the store under the lease. Nodes must not receive it before
	// Recorded. Only the newest Record counts.
	Record struct {
		Placement Placement
		Nodes     []Node
	}
	// LoadSlices makes every node of the placement load its slice, in rank order.
	LoadSlices struct {
		Placement Placement
		Nodes     []Node
	}
	// FormGroup makes every node join its group of the epoch.
	FormGroup struct {
		Epoch     uint32
		Placement Placement
		Nodes     []Node
	}
	// Serve: the placement is ready; steps may start.
	Serve struct {
		Placement Placement
		Nodes     []Node
	}
	// RetireNode makes a node outside of the newest epoch free its weights and caches.
	RetireNode struct {
		Node  Node
		Epoch uint32
	}
)

// Kinds of reasons for which a serving placement is withdrawn.
const (
	KindLost      = "node_lost"
	KindRestarted = "node_restarted" // a new process runs under the node's id
	KindDrained   = "node_drained"
	KindFenced    = "node_fenced"
	KindRefused   = "node_refused" // a node's build turned out to be incompatible
	KindJoined    = "node_joined"
	KindStep      = "step_failed"
	KindDeposed   = "lease_lost"
)

// Kinds lists all kinds of reasons.
func Kinds() []string {
	return []string{KindLost, KindRestarted, KindDrained, KindFenced, KindRefused, KindJoined, KindStep, KindDeposed}
}

func (Withdraw) effect()   {}
func (Record) effect()     {}
func (LoadSlices) effect() {}
func (FormGroup) effect()  {}
func (Serve) effect()      {}
func (RetireNode) effect() {}

// AuthorityConfig holds the rules of an Authority.
type AuthorityConfig struct {
	Shape Shape
	// Mapping of all placements. Empty: chosen from the nodes' measurements and WeightBytes, the
	// bytes of one weight.
	Mapping     Mapping
	WeightBytes float64
	// Cards chooses the nodes that compute when some have a graphics card. Default: CardAlone.
	Cards Cards
	// Nodes is how many nodes the first placement waits for. Zero: it takes the nodes that are up
	// once Settle has passed without a change. A coordinator that succeeds another one waits at most
	// successorWait times Settle, because a node may be lost permanently.
	Nodes  int
	Settle time.Duration
	// Backoff is the pause before a failed placement is tried again. It doubles up to 32 times
	// itself.
	Backoff time.Duration
	// Quarantine is how long a node that others cannot reach is first left out. It doubles up to 32
	// times itself. Default 5 s.
	Quarantine time.Duration
	// Pause is how long a straggler is first left out. Default 10 s.
	Pause time.Duration
	// Shares are the operator's shares by node. They override the nodes' own.
	Shares map[string]float64
	// MaxNodes bounds the sockets of a placement. Default: DefaultMaxNodes.
	MaxNodes  int
	ModelHash string
	// Others are the further models of the cluster. Every node has a part of each of them.
	Others []ModelRules
	// After is the newest epoch ever written to the store. The first epoch is higher. Epochs that
	// nodes report count too, for coordinators without a store.
	After uint32
	// Leased: epochs are written under a lease. A node with a newer epoch than ours then follows
	// another coordinator and gets no messages from this one.
	Leased bool
	// Drained lists the nodes that an earlier coordinator drained, by incarnation.
	Drained map[string]uint64
}

const successorWait = 5

// Authority decides which nodes form which epoch. It is the only state machine that numbers
// placements, and it is pure: time arrives by Tick, answers of nodes by Answered.
type Authority struct {
	cfg              AuthorityConfig
	now              time.Duration
	phase            AuthorityPhase
	epoch            uint32 // of the newest placement
	announced        uint32 // newest epoch that was written to the store and sent to nodes
	reported         uint32 // newest epoch that a node has reported; the next one is higher
	place            Placement
	members          []Node // nodes of the current placement, in rank order
	nodes            map[string]Node
	refused          map[string]refusal    // nodes that are up and cannot take part
	waiting          map[string]bool       // nodes that have not answered in this phase
	drained          map[string]uint64     // incarnations of the drained nodes
	drainedOrder     []string              // their ids, in the order in which they were drained
	unreachable      [][2]string           // pairs that cannot reach each other, as reported in this phase
	quarantined      map[string]quarantine // nodes that others could not reach
	mappings         map[mappingOf]Mapping // chosen mappings
	capped           map[string]string     // nodes whose share was limited, with the reason
	fenced           map[string]Fence      // stragglers that are left out or have come back
	faults           map[string]faultCount // nodes that caused broken epochs
	ignoreAloneUntil time.Duration         // until then faults of single nodes are not counted
	probeAt          time.Duration         // when fenced nodes may be probed again
	changed          time.Duration         // last change of membership
	retryAt          time.Duration
	tries            int
	served           bool
	reason           string
}

// DefaultMaxNodes is the largest number of sockets in a placement.
const DefaultMaxNodes = 64

// NewAuthority returns an authority without nodes.
func NewAuthority(cfg AuthorityConfig) *Authority {
	cfg.MaxNodes = cmp.Or(cfg.MaxNodes, DefaultMaxNodes)
	cfg.Quarantine = cmp.Or(cfg.Quarantine, 5*time.Second)
	cfg.Pause = cmp.Or(cfg.Pause, 10*time.Second)
	drained := maps.Clone(cfg.Drained)
	if drained == nil {
		drained = map[string]uint64{}
	}
	return &Authority{cfg: cfg, phase: Gathering, reported: cfg.After, nodes: map[string]Node{}, refused: map[string]refusal{},
		drained: drained, drainedOrder: slices.Sorted(maps.Keys(drained)), capped: map[string]string{},
		quarantined: map[string]quarantine{}, fenced: map[string]Fence{},
		faults: map[string]faultCount{}, mappings: map[mappingOf]Mapping{}, reason: "no node has joined yet"}
}

// Phase returns the phase and a short reason.
func (a *Authority) Phase() (AuthorityPhase, string) { return a.phase, a.reason }

// Epoch returns the number of the newest placement.
func (a *Authority) Epoch() uint32 { return a.epoch }

// Placement returns the newest placement and its nodes in rank order.
func (a *Authority) Placement() (Placement, []Node) { return a.place, a.members }

// Refused lists nodes that are up but cannot take part, with the reason.
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

// Refuse reports a node that is up but cannot take part.
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
		return append(out, a.start()...) // updates the reason
	}
	return out
}

// Known lists the nodes that are up, by id.
func (a *Authority) Known() []Node {
	return slices.SortedFunc(maps.Values(a.nodes), func(x, y Node) int { return strings.Compare(x.ID, y.ID) })
}

// Up reports a node that is up. A known id with another incarnation is a new process: the weights and
// caches of the old one are lost.
func (a *Authority) Up(n Node) []Effect {
	if a.phase == Over {
		return nil
	}
	delete(a.refused, n.ID)
	if why := a.cfg.lacking(n); why != "" {
		return a.Refuse(n.ID, n.Incarnation, why)
	}
	old, known := a.nodes[n.ID]
	a.nodes[n.ID] = n
	a.reported = max(a.reported, n.Epoch)
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
	out := a.replan(KindRestarted, n.ID, fmt.Sprintf("node %s joined", n.ID), a.isMember(n.ID))
	if a.phase == Serving {
		// The node returns from an epoch that has continued without it and may be a spare for long. It
		// must free its old weights and caches, even if an earlier coordinator had reached a higher
		// epoch than this one.
		out = append(out, RetireNode{Node: n, Epoch: a.retireUpTo()})
	}
	return out
}

// Down reports that a process has ended. It has no effect unless that process is the known one of this
// id. Incarnations are not ordered.
func (a *Authority) Down(id string, incarnation uint64) []Effect {
	if r, ok := a.refused[id]; ok && r.incarnation == incarnation {
		delete(a.refused, id)
	}
	if n, ok := a.nodes[id]; !ok || n.Incarnation != incarnation {
		return nil
	}
	return a.drop(id, KindLost, fmt.Sprintf("node %s is gone", id))
}

// drop removes the process known by this id.
func (a *Authority) drop(id, kind, reason string) []Effect {
	if _, ok := a.nodes[id]; !ok || a.phase == Over {
		return nil
	}
	delete(a.nodes, id)
	a.changed = a.now
	if a.phase == Gathering && len(a.ready()) == 0 {
		return a.start() // updates the reason
	}
	if !a.isMember(id) {
		return nil
	}
	return a.replan(kind, id, reason, true)
}

// Drain removes a node that is up from the placement. Its sequences and shares move to the others
// while it still runs, and it gets RetireNode when it holds nothing any more. It takes no part
// until another process has its id. last: it is the last node, so nothing changes.
func (a *Authority) Drain(id string, incarnation uint64) (out []Effect, last bool) {
	n, ok := a.nodes[id]
	if !ok || n.Incarnation != incarnation || a.phase == Over {
		return nil, false
	}
	if len(a.ready()) == 1 && a.ready()[0].ID == id {
		return nil, true
	}
	a.drained[id] = incarnation
	a.drainedOrder = append(slices.DeleteFunc(a.drainedOrder, func(x string) bool { return x == id }), id)
	a.forgetDrained()
	if a.isMember(id) {
		return a.replan(KindDrained, id, fmt.Sprintf("node %s drains", id), true), false
	}
	return []Effect{RetireNode{Node: n, Epoch: a.retireUpTo()}}, false
}

// maxGoneDrained is how many drained nodes are remembered that are not up. One that was lost by mistake comes back soon.
const maxGoneDrained = 256

// forgetDrained drops the drained nodes that are gone for the longest time, beyond maxGoneDrained. A node without a fixed
// name has another one after each restart, and all of them are in each write of the lease.
func (a *Authority) forgetDrained() {
	gone := 0
	for i := len(a.drainedOrder) - 1; i >= 0; i-- {
		id := a.drainedOrder[i]
		incarnation, drained := a.drained[id]
		if n, up := a.nodes[id]; drained && up && n.Incarnation == incarnation {
			continue
		}
		if drained {
			gone++
		}
		if !drained || gone > maxGoneDrained {
			delete(a.drained, id)
			a.drainedOrder = slices.Delete(a.drainedOrder, i, i+1)
		}
	}
}

// Undrain lets a drained node take part again, after Settle. It returns false if the node is not
// drained.
func (a *Authority) Undrain(id string) bool {
	n, ok := a.nodes[id]
	if !ok || a.drained[id] != n.Incarnation || a.phase == Over {
		return false
	}
	delete(a.drained, id)
	a.changed = a.now
	return true
}

// retireUpTo returns the newest epoch whose weights and caches a node outside of the placement must
// free.
func (a *Authority) retireUpTo() uint32 {
	if a.cfg.Leased {
		return max(a.announced, a.cfg.After)
	}
	return max(a.announced, a.reported)
}

// Drained lists the drained nodes by incarnation.
func (a *Authority) Drained() map[string]uint64 { return a.drained }

// ready returns the nodes that may take part, by id. If all are fenced, it includes slow ones.
func (a *Authority) ready() []Node {
	all := slices.DeleteFunc(a.Known(), a.isOut)
	if r := slices.DeleteFunc(slices.Clone(all), a.isFenced); len(r) > 0 {
		return r
	}
	return slices.DeleteFunc(all, func(n Node) bool { return a.fenced[n.ID].Hung })
}

// isOut reports whether a node is up but must not take part.
func (a *Authority) isOut(n Node) bool { return a.drained[n.ID] == n.Incarnation || a.isQuarantined(n) }

// Answered reports a node's answer to LoadSlices or FormGroup of an epoch. After an error of a node
// that is up, a new epoch is tried after a pause.
func (a *Authority) Answered(epoch uint32, id string, err error) []Effect {
	if epoch != a.epoch || !a.waiting[id] {
		return nil
	}
	var cut *Unreachable
	if a.phase == Joining && errors.As(err, &cut) && len(cut.Nodes) > 0 { // decided when all nodes have answered
		for _, other := range cut.Nodes {
			a.unreachable = append(a.unreachable, [2]string{id, other})
		}
		err = nil
	}
	if err != nil {
		a.tries++
		reason := fmt.Sprintf("%s at node %s: %v", a.phase, id, err)
		if errors.Is(err, ErrWeights) && a.served { // other nodes may have intact files
			if n, ok := a.nodes[id]; ok && a.canSpare(n) {
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
		return []Effect{FormGroup{Epoch: a.epoch, Placement: a.place, Nodes: a.members}}
	}
	if len(a.unreachable) > 0 {
		a.tries++
		a.leaveOut()
		return a.fail()
	}
	for _, n := range a.members {
		delete(a.quarantined, n.ID)
	}
	a.phase, a.reason, a.tries, a.served = Serving, "", 0, true
	return []Effect{Serve{Placement: a.place, Nodes: a.members}}
}

// Broken reports that a step of an epoch failed. That ends the epoch.
func (a *Authority) Broken(epoch uint32, reason string) []Effect {
	if epoch != a.epoch || a.phase != Serving {
		return nil
	}
	a.reason = reason
	return append([]Effect{Withdraw{Kind: KindStep, Reason: reason}}, a.start()...)
}

// Tick advances the clock, which never goes back.
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

// grew reports whether nodes wait for a place in a serving placement.
func (a *Authority) grew() bool {
	decode, prefill := a.choose()
	lacks := func(have, want []Node) bool {
		return slices.ContainsFunc(want, func(n Node) bool {
			return !slices.ContainsFunc(have, func(m Node) bool { return m.ID == n.ID })
		})
	}
	return lacks(a.place.DecodeNodes(a.members), decode) || lacks(a.place.PrefillNodes(a.members), prefill)
}

func (a *Authority) isMember(id string) bool {
	return a.phase != Gathering && slices.ContainsFunc(a.members, func(n Node) bool { return n.ID == id })
}

// replan reacts to a change of membership. A serving placement that still works stays until Settle
// has passed.
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
	a.phase, a.waiting = Gathering, nil // answers to the abandoned epoch must not count
	want := max(1, a.cfg.Nodes)
	if a.served || a.cfg.After > 0 && a.now-a.changed >= successorWait*a.cfg.Settle {
		want = 1
	}
	if n := len(a.ready()); n < want {
		a.reason = fmt.Sprintf("%d of %d nodes are here", n, want)
		if len(a.refused) > 0 {
			a.reason += fmt.Sprintf(", and %d are refused (shoal status lists the reasons)", len(a.refused))
		}
		return nil
	}
	if a.cfg.Nodes == 0 && !a.served && a.now-a.changed < a.cfg.Settle {
		a.reason = "waiting for more nodes to join"
		return nil
	}
	decode, prefill := a.choose()
	a.epoch = max(a.epoch, a.reported) + 1
	p, err := a.placeAll(decode, prefill)
	if err != nil {
		a.tries++
		a.reason = err.Error()
		return a.fail()
	}
	a.place, a.members, a.phase = p, slices.Concat(decode, prefill), Recording
	return []Effect{Record{Placement: p, Nodes: a.members}}
}

// Recorded reports that the placement of an epoch is in the store under the lease. Nodes may now
// receive it.
func (a *Authority) Recorded(epoch uint32) []Effect {
	if epoch != a.epoch || a.phase != Recording {
		return nil
	}
	a.announced = epoch
	a.enter(Loading)
	out := []Effect{LoadSlices{Placement: a.place, Nodes: a.members}}
	for _, n := range a.Known() {
		if !slices.ContainsFunc(a.members, func(m Node) bool { return m.ID == n.ID }) {
			out = append(out, RetireNode{Node: n, Epoch: a.epoch})
		}
	}
	return out
}

// Depose ends this authority because another coordinator has the lease. No more effects follow.
func (a *Authority) Depose(reason string) []Effect {
	serving := a.phase == Serving
	a.phase, a.reason, a.waiting = Over, reason, nil
	if serving {
		return []Effect{Withdraw{Kind: KindDeposed, Reason: reason}}
	}
	return nil
}

// choose returns the nodes of both groups. It keeps the ranks of nodes that took part before, so that few
// slices move. New nodes follow by id.
func (a *Authority) choose() (decode, prefill []Node) {
	var part []Node
	ready := a.ready()
	seen := map[string]bool{}
	for _, old := range a.members {
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
	decode, prefill = split(part)
	return a.fitting(decode), a.fitting(prefill)
}

// fitting returns those nodes of a group that take part. The others are spares.
func (a *Authority) fitting(part []Node) []Node {
	part = a.cfg.Cards.of(part)
	return part[:min(len(part), a.cfg.MaxNodes)]
}

func (a *Authority) enter(p AuthorityPhase) {
	a.phase, a.unreachable = p, nil
	a.waiting = map[string]bool{}
	for _, n := range a.members {
		a.waiting[n.ID] = true
	}
}
