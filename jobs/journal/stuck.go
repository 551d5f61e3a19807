package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stuckAfter is how long a leader may say that an append to a subject is under way: a sync
// of a slow disk and a round to the other replicas, many times over.
const stuckAfter = 3 * time.Second

// silentAfter is how long a replica may say nothing to its leader and count as there; it is
// heard from every second.
const silentAfter = 3 * time.Second

// InProcess is a refusal that says nothing of what is there: the leader of a stream has an
// append to the subject under way, and takes no other before that is done.
//
// A leader that lost its majority, and got it back with entries of its earlier term still to
// be applied, may hold a subject to be in process for ever: it takes an entry of the same
// sequence for its own, and forgets what it waited for (nats-server 2.15.2, expected last
// sequence by subject). Only the end of its leadership clears that, so it is asked to step
// down when a subject stays in process for longer than an append can take.
type InProcess struct {
	conn   *nats.Conn
	stream string
	log    *slog.Logger

	mu    sync.Mutex
	since map[string]time.Time // by subject
}

// NewInProcess watches the appends to a stream with replicas.
func NewInProcess(nc *nats.Conn, stream string, log *slog.Logger) *InProcess {
	return &InProcess{conn: nc, stream: stream, log: log, since: map[string]time.Time{}}
}

// Is tells whether err, of an append to a subject that expected a last sequence, is such a
// refusal.
func (p *InProcess) Is(ctx context.Context, subject string, err error) bool {
	var api *jetstream.APIError
	is := errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
	now := time.Now()
	p.mu.Lock()
	began, before := p.since[subject]
	switch {
	case !is:
		delete(p.since, subject)
	case !before:
		p.since[subject], began = now, now
	}
	stuck := is && now.Sub(began) > stuckAfter
	if stuck {
		clear(p.since) // the next leader has its own time, and so has a majority that comes back
	}
	p.mu.Unlock()
	if stuck && p.majority(ctx) {
		err := p.ask(ctx, "LEADER.STEPDOWN", nil)
		p.log.Warn("an append has been under way for too long: the leader of the stream was asked to step down", "stream", p.stream, "subject", subject, "error", err)
	}
	return is
}

// majority tells that the leader hears enough replicas to finish what is under way. One that
// does not waits, as it should.
func (p *InProcess) majority(ctx context.Context) bool {
	var info jetstream.StreamInfo
	if p.ask(ctx, "INFO", &info) != nil || info.Cluster == nil {
		return false
	}
	here := 1
	for _, r := range info.Cluster.Replicas {
		if !r.Offline && r.Active < silentAfter {
			here++
		}
	}
	return here > info.Config.Replicas/2
}

// ask is a request to the leader of the stream; into may be nil.
func (p *InProcess) ask(ctx context.Context, what string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	reply, err := p.conn.RequestWithContext(ctx, "$JS.API.STREAM."+what+"."+p.stream, nil)
	if err == nil {
		err = json.Unmarshal(reply.Data, &r)
	}
	if err == nil && r.Error != nil {
		err = r.Error
	}
	if err == nil && into != nil {
		err = json.Unmarshal(reply.Data, into)
	}
	if err != nil {
		return fmt.Errorf("jobs: %s of %s: %w", what, p.stream, err)
	}
	return nil
}
