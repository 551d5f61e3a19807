package sessions

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Errors of a Book.
var (
	ErrBusy     = errors.New("sessions: a turn of the session is running")
	ErrMoved    = errors.New("sessions: the session has another turn by now")
	ErrMany     = errors.New("sessions: too many sessions")
	ErrShare    = errors.New("sessions: this API key has used its share of the sessions")
	ErrLarge    = errors.New("sessions: the sessions take too much space")
	ErrNotFound = errors.New("sessions: no such session")
	ErrDamaged  = errors.New("sessions: the session is damaged")
)

// Recorder makes turns durable. It calls Replace when a session has changed. All methods may be called
// concurrently.
type Recorder interface {
	// Record stores a turn as number turns+1 of a session. Without an error it is on disk. After an error it
	// may or may not be there, until Settle returns nil.
	Record(ctx context.Context, id string, turns int, payload []byte) error
	// Settle applies the record that an earlier Record or End may have stored.
	Settle(ctx context.Context, id string) error
	// End stores that a session is over after a number of turns. ErrMoved: it has other turns by now, or none.
	// After any other error it may or may not be over, until Settle returns nil.
	End(ctx context.Context, id string, turns int) error
}

// Book has all sessions of a server. All methods may be called concurrently.
type Book struct {
	recorder Recorder // nil: sessions end with the process
	now      func() time.Time

	mu    sync.Mutex
	all   map[string]*entry
	bytes int64
}

type entry struct {
	tenant string
	state  State
	busy   bool   // a turn is running, or the session is being deleted
	doubt  bool   // the last turn may be stored
	doubts int    // how often doubt was set
	damage string // why the records cannot be read
}

// NewBook returns an empty book. recorder may be nil. A nil now is the system clock.
func NewBook(recorder Recorder, now func() time.Time) *Book {
	if now == nil {
		now = time.Now
	}
	return &Book{recorder: recorder, now: now, all: map[string]*entry{}}
}

// millis returns the time. Times to live continue while no process runs, so it is the clock of the machine.
func (b *Book) millis() int64 { return b.now().UnixMilli() }

// Durable reports whether the sessions outlive the process.
func (b *Book) Durable() bool { return b.recorder != nil }

// ID names a session among those of all API keys.
func ID(tenant, name string) string {
	sum := sha256.Sum256([]byte(tenant + "\x00" + name))
	return IDPrefix + hex.EncodeToString(sum[:16])
}

// IDPrefix begins every ID.
const IDPrefix = "session-"

// Session is a session in the form of the API.
type Session struct {
	Object   string `json:"object"`
	Name     string `json:"name"`
	Model    string `json:"model"`
	Policy   string `json:"kv_policy"`
	Turns    int    `json:"turns"`
	Tokens   int    `json:"tokens"`
	Messages int    `json:"messages"`
	Bytes    int64  `json:"bytes"` // of the turns on disk
	Created  int64  `json:"created"`
	LastTurn int64  `json:"last_turn"`
	Expires  int64  `json:"expires_at"`
	Status   string `json:"status"` // idle, running, damaged
	Durable  bool   `json:"durable"`
}

func (b *Book) shown(e *entry) Session {
	s := &e.state
	out := Session{Object: "session", Name: s.Name, Model: s.Model, Policy: s.Policy, Turns: s.Turns, Tokens: len(s.IDs),
		Messages: len(s.Messages), Bytes: s.Bytes,
		Created: s.Created / 1000, LastTurn: s.Used / 1000, Expires: s.Ends() / 1000, Status: "idle", Durable: b.Durable()}
	switch {
	case e.damage != "":
		out.Status = "damaged"
	case e.busy:
		out.Status = "running"
	}
	return out
}

// over reports whether the time of a session is over, and nothing uses it.
func (e *entry) over(now int64) bool {
	return !e.busy && e.state.Turns+len(e.damage) > 0 && now >= e.state.Ends()
}

// present returns the entry of a session that has a turn, and whose time is not over. b.mu must be held.
func (b *Book) present(id string) *entry {
	e := b.all[id]
	if e == nil || e.state.Turns+len(e.damage) == 0 || e.over(b.millis()) {
		return nil
	}
	return e
}

// Of lists the sessions of a tenant, sorted by name.
func (b *Book) Of(tenant string) []Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []Session{}
	for id, e := range b.all {
		if e.state.Tenant == tenant && e.state.Turns > 0 && b.present(id) != nil {
			out = append(out, b.shown(e))
		}
	}
	slices.SortFunc(out, func(x, y Session) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

// Get returns a session in the form of the API.
func (b *Book) Get(ctx context.Context, tenant, name string) (Session, error) {
	if _, err := b.State(ctx, tenant, name); err != nil && !errors.Is(err, ErrDamaged) {
		return Session{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.present(ID(tenant, name))
	if e == nil {
		return Session{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	out := b.shown(e)
	out.Name = name // a damaged first record has no name
	return out, nil
}

// State returns the state of a session. ErrNotFound: there is none.
func (b *Book) State(ctx context.Context, tenant, name string) (State, error) {
	id := ID(tenant, name)
	if err := b.settle(ctx, id); err != nil {
		return State{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.present(id)
	switch {
	case e == nil:
		return State{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	case e.damage != "":
		return State{}, fmt.Errorf("%w: %s", ErrDamaged, e.damage)
	}
	return e.state, nil
}

// settle finds whether a turn in doubt was stored after all. A session without turns is deleted.
func (b *Book) settle(ctx context.Context, id string) error {
	b.mu.Lock()
	e := b.all[id]
	if e == nil || !e.doubt {
		b.mu.Unlock()
		return nil
	}
	doubts := e.doubts
	b.mu.Unlock()
	if err := b.recorder.Settle(ctx, id); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[id]; e != nil && e.doubts == doubts {
		e.doubt = false
		if !e.busy && e.state.Turns == 0 {
			delete(b.all, id)
		}
	}
	return nil
}

// Begin reserves a session for its next turn. turns is the number of its turns that State returned; 0: it
// is a new one. End ends that.
func (b *Book) Begin(ctx context.Context, tenant, name string, turns int) error {
	id := ID(tenant, name)
	if err := b.clear(ctx, id); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[id]
	own, ownBytes := b.ofTenant(tenant)
	if e == nil && turns == 0 {
		switch all := len(b.all); {
		case all >= MaxSessions:
			return fmt.Errorf("%w: %d of at most %d", ErrMany, all, MaxSessions)
		case tenant != "" && own >= MaxSessions-all:
			return fmt.Errorf("%w: it has %d, and %d of the %d of this server are free", ErrShare, own, MaxSessions-all, MaxSessions)
		}
		e = &entry{tenant: tenant}
	}
	switch {
	case e == nil || e.damage != "":
		return ErrMoved
	case e.busy:
		return ErrBusy
	case e.state.Turns != turns:
		return ErrMoved
	case !b.fits(e, ownBytes, 1):
		return b.tooLarge(e, ownBytes)
	}
	e.busy = true
	b.all[id] = e
	return nil
}

// ofTenant returns the number of sessions of an API key, and their bytes. b.mu must be held.
func (b *Book) ofTenant(tenant string) (sessions int, bytes int64) {
	for _, e := range b.all {
		if e.tenant == tenant {
			sessions, bytes = sessions+1, bytes+e.state.Bytes
		}
	}
	return sessions, bytes
}

// fits reports whether a session may have more bytes. An API key may have half of the bytes that other keys
// leave free. own are the bytes of its key now. b.mu must be held.
func (b *Book) fits(e *entry, own, more int64) bool {
	return b.bytes+more <= MaxAllBytes && e.state.Bytes+more <= MaxBytes && (e.tenant == "" || own+more <= MaxAllBytes-b.bytes)
}

// clear deletes an expired session. Without a recorder nothing calls Sweep.
func (b *Book) clear(ctx context.Context, id string) error {
	if b.recorder == nil {
		return b.Sweep(ctx)
	}
	b.mu.Lock()
	e := b.all[id]
	if e == nil || !e.over(b.millis()) {
		b.mu.Unlock()
		return nil
	}
	e.busy = true
	b.mu.Unlock()
	return b.drop(ctx, id, e)
}

// End releases a session that Begin reserved. The session keeps its turns.
func (b *Book) End(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[id]; e != nil {
		e.busy = false
		if e.state.Turns == 0 && !e.doubt {
			delete(b.all, id)
		}
	}
}

// Commit adds a turn to a session that Begin reserved. After an error the session is as before, or
// the turn was stored after all, and State finds it.
func (b *Book) Commit(ctx context.Context, id string, turns int, t Turn) error {
	payload, err := t.Encode()
	if err == nil {
		err = b.accepts(id, &t, len(payload))
	}
	if err != nil {
		return err
	}
	if b.recorder == nil {
		b.mu.Lock()
		s := b.all[id].state
		b.mu.Unlock()
		err := s.Add(id, payload, b.millis())
		if err == nil {
			b.Replace(id, s, "")
		}
		return err
	}
	b.doubt(id, true)
	if err := b.recorder.Record(ctx, id, turns, payload); err != nil {
		return err
	}
	b.doubt(id, false)
	return nil
}

// accepts returns an error if a turn, of a number of bytes, cannot be the next one of a session.
func (b *Book) accepts(id string, t *Turn, bytes int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[id]
	if e == nil {
		return ErrMoved
	}
	if _, own := b.ofTenant(e.tenant); !b.fits(e, own, int64(bytes)) {
		return b.tooLarge(e, own)
	}
	return e.state.accepts(t)
}

func (b *Book) tooLarge(e *entry, own int64) error {
	return fmt.Errorf("%w: all take %d of at most %d bytes, those of this API key %d, this one %d of %d", ErrLarge, b.bytes,
		int64(MaxAllBytes), own, e.state.Bytes, int64(MaxBytes))
}

func (b *Book) doubt(id string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.all[id]; e != nil {
		e.doubt = yes
		if yes {
			e.doubts++
		}
	}
}

// Replace sets the state of a session. Without turns it is over. damage is the reason why some of its
// records cannot be read; "": all can. A damaged session can only be deleted.
func (b *Book) Replace(id string, s State, damage string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[id]
	if e == nil {
		e = &entry{}
		b.all[id] = e
	}
	b.bytes += s.Bytes - e.state.Bytes
	e.state, e.damage = s, damage
	if damage != "" {
		e.state.Used = max(s.Used, b.millis())
		e.state.TTL = max(s.TTL, int64(MaxTTL/time.Second))
	}
	if s.Turns > 0 {
		e.tenant = s.Tenant
	}
	if s.Turns == 0 && damage == "" && !e.busy && !e.doubt {
		delete(b.all, id)
	}
}

// Delete removes a session.
func (b *Book) Delete(ctx context.Context, tenant, name string) error {
	id := ID(tenant, name)
	if err := b.settle(ctx, id); err != nil {
		return err
	}
	b.mu.Lock()
	e := b.present(id)
	switch {
	case e == nil:
		b.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrNotFound, name)
	case e.busy:
		b.mu.Unlock()
		return ErrBusy
	}
	e.busy = true
	b.mu.Unlock()
	return b.drop(ctx, id, e)
}

// drop removes a session that is marked as busy.
func (b *Book) drop(ctx context.Context, id string, e *entry) (err error) {
	if b.recorder != nil {
		b.doubt(id, true)
		b.mu.Lock()
		turns := e.state.Turns
		b.mu.Unlock()
		err = b.recorder.End(ctx, id, turns)
		if err == nil || errors.Is(err, ErrMoved) {
			b.doubt(id, false)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.busy = false
	over := err == nil || e.state.Turns+len(e.damage) == 0 && !e.doubt // another coordinator may have ended it
	if over && b.all[id] == e {
		delete(b.all, id)
		b.bytes -= e.state.Bytes
	}
	return err
}

// Sweep deletes the sessions whose time is over, and those whose first turn failed and was not stored.
func (b *Book) Sweep(ctx context.Context) error {
	b.mu.Lock()
	all := slices.Sorted(maps.Keys(b.all))
	b.mu.Unlock()
	var err error
	for _, id := range all {
		b.mu.Lock()
		e := b.all[id]
		over := e != nil && e.over(b.millis())
		doubtful := e != nil && !e.busy && e.doubt && e.state.Turns == 0
		if over {
			e.busy = true
		}
		b.mu.Unlock()
		switch {
		case over:
			if removed := b.drop(ctx, id, e); !errors.Is(removed, ErrMoved) { // by another coordinator, which is then known
				err = errors.Join(err, removed)
			}
		case doubtful:
			err = errors.Join(err, b.settle(ctx, id))
		}
	}
	return err
}

// Totals returns the number of sessions, and of their tokens.
func (b *Book) Totals() (sessions, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.all {
		if e.state.Turns > 0 {
			sessions, tokens = sessions+1, tokens+len(e.state.IDs)
		}
	}
	return sessions, tokens
}
