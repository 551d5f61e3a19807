package gossip

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// queue connects memberlist's callbacks with the reporting goroutine. The callbacks run
// under memberlist's locks and must neither block nor call it back. The queue keeps the
// latest observation per member, so its size is bounded by the number of members and
// it loses only outdated observations. A restart in between is still detected, because
// the view compares incarnations.
//
// It also keeps the live members, since memberlist writes to the result of
// memberlist.Members while the caller reads it.
type queue struct {
	mu      sync.Mutex
	alive   map[string]Member
	latest  map[string]report
	order   []string
	wake    chan struct{} // capacity 1
	self    string
	refused func(name string, err error)
}

const maxMembers = 4096

func (q *queue) put(o report) {
	if o.member.Name == q.self {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil {
		q.latest = map[string]report{}
	}
	if _, known := q.alive[o.member.Name]; !o.alive {
		delete(q.alive, o.member.Name)
	} else if known || len(q.alive) < maxMembers {
		q.alive[o.member.Name] = o.member
	}
	if _, waiting := q.latest[o.member.Name]; !waiting {
		if len(q.order) >= maxMembers {
			return
		}
		q.order = append(q.order, o.member.Name)
	}
	q.latest[o.member.Name] = o
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) members() []Member {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.alive))
}

func (q *queue) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.alive)
}

func (q *queue) take() []report {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]report, 0, len(q.order))
	for _, name := range q.order {
		out = append(out, q.latest[name])
	}
	q.latest, q.order = nil, nil
	return out
}

// NotifyJoin implements memberlist.EventDelegate.
func (q *queue) NotifyJoin(n *memberlist.Node) { q.record(n, true) }

func (q *queue) NotifyUpdate(n *memberlist.Node) { q.record(n, true) }

// NotifyLeave implements memberlist.EventDelegate. n.State is "alive" both after a leave and after a failure.
func (q *queue) NotifyLeave(n *memberlist.Node) { q.record(n, false) }

func (q *queue) record(n *memberlist.Node, alive bool) {
	if m, err := memberOf(n); err == nil { // NotifyAlive has refused undecodable members
		q.put(report{member: m, alive: alive})
	}
}

// NotifyAlive implements memberlist.AliveDelegate. It refuses members with the right key but
// another metadata format.
func (q *queue) NotifyAlive(n *memberlist.Node) error {
	_, err := memberOf(n)
	if err != nil {
		q.refused(n.Name, err)
	}
	return err
}

func (q *queue) NotifyConflict(existing, other *memberlist.Node) {
	q.refused(other.Name, errConflict(existing, other))
}

func memberOf(n *memberlist.Node) (Member, error) {
	meta, err := DecodeMeta(n.Meta)
	return Member{Name: n.Name, Address: net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port))), Meta: meta}, err
}

const (
	refusalEvery = time.Minute // between two lines about the same refusal
	maxRefusals  = 256         // refusals that are remembered
)

// refusals limits the lines about refused members: a member that stays is refused twice a second, by
// every other member.
type refusals struct {
	mu     sync.Mutex
	logged map[string]time.Time // name and error of a refusal
}

// isNew reports whether a refusal has not been logged for refusalEvery, and records it as logged.
func (r *refusals) isNew(name string, err error, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := name + "\x00" + err.Error()
	if last, known := r.logged[key]; known && now.Sub(last) < refusalEvery {
		return false
	}
	maps.DeleteFunc(r.logged, func(_ string, last time.Time) bool { return now.Sub(last) >= refusalEvery })
	if r.logged == nil {
		r.logged = map[string]time.Time{}
	}
	if len(r.logged) >= maxRefusals {
		return false
	}
	r.logged[key] = now
	return true
}
