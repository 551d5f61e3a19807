package coordinator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/topology"
)

var (
	// ErrLastNode: no other node can take over the work.
	ErrLastNode = errors.New("cluster: it is the last node")
	// ErrNotDrained: the node is a member, or is waiting to become one, or cannot be drained.
	ErrNotDrained = errors.New("cluster: it is not drained")
	// ErrDrainUnrecorded: the change has begun, but the store does not have it yet.
	ErrDrainUnrecorded = errors.New("cluster: the change has begun, but the store has not recorded it in time, so a coordinator that takes " +
		"over now does not know of it; repeat the command")
)

// drainRecordLimit is how long the answer to a drain waits for its record. It is shorter than the limit of the request.
const drainRecordLimit = 4 * time.Second

// unrecordedDrain is a drain, or its end, whose record is not written yet.
type unrecordedDrain struct {
	id          string
	incarnation uint64
	drained     bool
	until       time.Time
	reply       chan<- error
}

// drain removes a node from placements while it keeps running.
func (d *Director) drain(c actor.Context, m *nodeDrain) {
	incarnation, up := d.Known(m.id)
	if m.incarnation == 0 {
		m.incarnation = incarnation
	}
	effects, last := d.authority.Drain(m.id, m.incarnation)
	recorded := false
	var err error
	switch {
	case !up:
		err = fmt.Errorf("cluster: there is no node %q", m.id)
	case last && m.leaves:
		h := d.hosts[m.id]
		d.down(c, m.id, m.incarnation)
		d.retire(h, d.authority.Epoch())
	case last:
		err = fmt.Errorf("%w: no other node can take over the work of %s", ErrLastNode, m.id)
	case d.authority.Drained()[m.id] != m.incarnation:
		err = d.undrainable(m.id)
	default:
		d.cfg.Logger.Info("draining", "node", m.id)
		recorded = d.recordDrains(m.id, m.incarnation, true, m.reply) // before the placement that results from it
		d.report(topology.KindDrained, m.id, "", effects)
		d.run(c, effects)
	}
	if m.reply != nil && !recorded {
		m.reply <- err
	}
}

// undrainable returns why a node that is up cannot be drained.
func (d *Director) undrainable(id string) error {
	if why, refused := d.authority.Refused()[id]; refused {
		return fmt.Errorf("%w: %s takes no part and holds no data: it is refused: %s", ErrNotDrained, id, why)
	}
	_, why := d.authority.Phase()
	return fmt.Errorf("%w: %s cannot be drained now: %s", ErrNotDrained, id, why)
}

func (d *Director) undrain(m *nodeUndrain) {
	incarnation, up := d.Known(m.id)
	switch {
	case !up:
		m.reply <- fmt.Errorf("cluster: there is no node %q", m.id)
	case !d.authority.Undrain(m.id):
		m.reply <- fmt.Errorf("%w: %s is a member or is waiting to become one", ErrNotDrained, m.id)
	default:
		d.cfg.Logger.Info("node undrained", "node", m.id)
		d.cfg.OnEvent(wire.EventUndrained, m.id, "")
		if !d.recordDrains(m.id, incarnation, false, m.reply) {
			m.reply <- nil
		}
	}
}

// recordDrains requests the record of the drained nodes, after a change of one of them. true: reply, unless nil, is
// answered when the record is written. false: there is no store.
func (d *Director) recordDrains(id string, incarnation uint64, drained bool, reply chan<- error) bool {
	if d.cfg.Drained == nil {
		return false
	}
	d.cfg.Drained(maps.Clone(d.authority.Drained()))
	if reply != nil {
		d.unrecorded = append(d.unrecorded, unrecordedDrain{id, incarnation, drained, time.Now().Add(drainRecordLimit), reply})
	}
	return true
}

// answerDrains answers the drains that the record has.
func (d *Director) answerDrains(nodes map[string]uint64) {
	d.unrecorded = slices.DeleteFunc(d.unrecorded, func(u unrecordedDrain) bool {
		written := (nodes[u.id] == u.incarnation) == u.drained
		if written {
			u.reply <- nil
		}
		return written
	})
}

// refuseDrains answers the drains whose time is over with an error; the zero time: all of them.
func (d *Director) refuseDrains(now time.Time, err error) {
	d.unrecorded = slices.DeleteFunc(d.unrecorded, func(u unrecordedDrain) bool {
		over := now.IsZero() || now.After(u.until)
		if over {
			u.reply <- err
		}
		return over
	})
}
