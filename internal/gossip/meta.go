package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MetaLimit is memberlist's limit for the metadata of a member, in bytes.
const MetaLimit = 512

var (
	// ErrMetaTooLarge is returned for a Meta whose encoding exceeds MetaLimit.
	ErrMetaTooLarge = errors.New("gossip: metadata too large")
	// ErrBadMeta is returned for bytes that are not an encoded Meta.
	ErrBadMeta = errors.New("gossip: not the metadata of a shoal member")
)

// State is the state that a member announces.
type State uint8

// States of a member.
const (
	Joining  State = iota // accepts work
	Ready                 // takes work
	Draining              // completes its work and will leave
)

var stateNames = [...]string{"joining", "ready", "draining"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Meta is the metadata that a member announces to all others.
type Meta struct {
	Role        string // "node", "coordinator"
	State       State
	Incarnation uint64 // of the process; changes with each restart
	RPC         string // host:port of package rpc
	Route       string // host:port of the NATS routes
	PID         uint32 // process id of the operating system
	Load        uint8  // percent of the memory budget in use
	Build       string // for display
	Store       string // host:port of the routes of its replica of the store; empty: it offers none
	Arithmetic  string // fingerprint of the arithmetic; empty: unknown
	// WireMin and WireMax are the wire versions of package rpc that it reads; 0: unknown.
	WireMin, WireMax uint16
	Leads            bool // this coordinator holds the lease
}

const metaFormat = 1

// Encode writes format 1, state, load, incarnation and PID in big-endian order. Then follow role,
// RPC, route, build, store and arithmetic, each as a length byte and the bytes. The wire versions
// and a byte for Leads (1 or 0) are last.
func (m Meta) Encode() ([]byte, error) {
	b := []byte{metaFormat, byte(m.State), m.Load}
	b = binary.BigEndian.AppendUint64(b, m.Incarnation)
	b = binary.BigEndian.AppendUint32(b, m.PID)
	for _, s := range []string{m.Role, m.RPC, m.Route, m.Build, m.Store, m.Arithmetic} {
		if len(s) > 255 {
			return nil, fmt.Errorf("%w: a field of %d bytes exceeds the limit of 255: %.40q", ErrMetaTooLarge, len(s), s)
		}
		b = append(append(b, byte(len(s))), s...)
	}
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, m.WireMin), m.WireMax)
	leads := byte(0)
	if m.Leads {
		leads = 1
	}
	b = append(b, leads)
	if len(b) > MetaLimit {
		return nil, fmt.Errorf("%w: %d bytes exceed the limit of %d; shorten build or addresses", ErrMetaTooLarge, len(b), MetaLimit)
	}
	return b, nil
}

// DecodeMeta decodes the result of Encode. It ignores bytes after the known fields, which newer
// builds may add.
func DecodeMeta(b []byte) (Meta, error) {
	const fixed = 3 + 8 + 4
	if len(b) < fixed || len(b) > MetaLimit {
		return Meta{}, fmt.Errorf("%w: %d bytes", ErrBadMeta, len(b))
	}
	if b[0] != metaFormat {
		return Meta{}, fmt.Errorf("%w: format %d, this build reads %d: run one build of Shoal in all processes", ErrBadMeta, b[0], metaFormat)
	}
	m := Meta{
		State: State(b[1]), Load: b[2],
		Incarnation: binary.BigEndian.Uint64(b[3:]), PID: binary.BigEndian.Uint32(b[11:]),
	}
	b = b[fixed:]
	text := func(to *string) bool {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return false
		}
		*to, b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
		return true
	}
	for _, s := range []*string{&m.Role, &m.RPC, &m.Route, &m.Build} {
		if !text(s) {
			return Meta{}, fmt.Errorf("%w: cut off", ErrBadMeta)
		}
	}
	// These fields are missing in the first builds.
	if text(&m.Store) && text(&m.Arithmetic) && len(b) >= 5 {
		m.WireMin, m.WireMax, m.Leads = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[4] == 1
	}
	return m, nil
}
