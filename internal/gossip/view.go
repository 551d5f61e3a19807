package gossip

// Kind of an Event.
type Kind uint8

const (
	Join   Kind = iota // a member joined
	Update             // it changed its Meta
	Leave              // it left after announcing that it drains
	Failed             // it disappeared, or restarted under its name
)

func (k Kind) String() string { return [...]string{"join", "update", "leave", "failed"}[k] }

type Member struct {
	Name    string
	Address string // host:port for gossip
	Meta    Meta
}

// Event is one change. Leave and Failed carry the last known Meta.
type Event struct {
	Kind   Kind
	Member Member
	// Rejoined marks the Join of an incarnation that was reported as failed before. It was frozen or
	// partitioned, and may still act on outdated knowledge.
	Rejoined bool
}

// report is memberlist's latest report about a name.
type report struct {
	member Member
	alive  bool
}

// view holds the reported state of the members and turns observations into events. The queue may have merged
// several observations of a member into one. The events of a member are always consistent: Join, Updates,
// then Leave or Failed, and so on.
type view struct {
	alive map[string]Member
	lost  map[string]uint64 // incarnation last reported as failed
}

const maxLost = 4096

// observe returns the events that change the reported state to o.
func (v *view) observe(o report) []Event {
	if v.alive == nil {
		v.alive, v.lost = map[string]Member{}, map[string]uint64{}
	}
	name := o.member.Name
	old, known := v.alive[name]
	switch {
	case !o.alive && !known:
		return nil
	case !o.alive:
		// memberlist reports leaves and failures in the same way, so the member's last announced state
		// decides.
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
	return Event{Kind: Join, Member: m, Rejoined: wasLost && inc == m.Meta.Incarnation}
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
