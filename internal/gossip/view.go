package gossip

// Kind of an Event.
type Kind uint8

const (
	Join   Kind = iota // a member came
	Update             // it changed its Meta
	Leave              // it went after announcing that it drains
	Failed             // it went without a word, or restarted under its name
)

func (k Kind) String() string { return [...]string{"join", "update", "leave", "failed"}[k] }

type Member struct {
	Name    string
	Address string // host:port of gossip
	Meta    Meta
}

// Event is one change. Leave and Failed carry the last known Meta.
type Event struct {
	Kind   Kind
	Member Member
	// Again marks the Join of a process, in the same incarnation, that had been
	// reported as failed: it was frozen or cut off and may still act on what it
	// knew then.
	Again bool
}

// seen is the latest that memberlist said about a name.
type seen struct {
	member Member
	alive  bool
}

// view is what has been reported so far, and decides what to report next.
// Observations may have been merged on their way here; the events are always a
// story that makes sense: Join, Updates, then Leave or Failed, and so on.
type view struct {
	alive map[string]Member
	lost  map[string]uint64 // incarnation last reported as failed
}

const maxLost = 4096

// observe returns the events that take the reported state to o.
func (v *view) observe(o seen) []Event {
	if v.alive == nil {
		v.alive, v.lost = map[string]Member{}, map[string]uint64{}
	}
	name := o.member.Name
	old, known := v.alive[name]
	switch {
	case !o.alive && !known:
		return nil
	case !o.alive:
		// memberlist reports the same state for a leave and a failure, so what
		// the member said last decides.
		return []Event{v.remove(old, o.member.Meta.Incarnation == old.Meta.Incarnation && o.member.Meta.State == Draining)}
	case !known:
		return []Event{v.add(o.member)}
	case old.Meta.Incarnation != o.member.Meta.Incarnation:
		return []Event{v.remove(old, false), v.add(o.member)}
	case old == o.member:
		return nil
	}
	v.alive[name] = o.member
	return []Event{{Kind: Update, Member: o.member}}
}

func (v *view) add(m Member) Event {
	inc, wasLost := v.lost[m.Name]
	delete(v.lost, m.Name)
	v.alive[m.Name] = m
	return Event{Kind: Join, Member: m, Again: wasLost && inc == m.Meta.Incarnation}
}

func (v *view) remove(m Member, draining bool) Event {
	delete(v.alive, m.Name)
	if draining || m.Meta.State == Draining {
		m.Meta.State = Draining
		return Event{Kind: Leave, Member: m}
	}
	if len(v.lost) < maxLost {
		v.lost[m.Name] = m.Meta.Incarnation
	}
	return Event{Kind: Failed, Member: m}
}
