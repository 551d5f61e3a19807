package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// events answers GET /v1/jobs/{id}/events?from=N. It streams the job's events from index N
// (default 0), or the one after Last-Event-ID, as they arrive, then job.end and [DONE]. An event
// is sent only after it was written, so an index has the same content after any crash.
func (v *Service) events(w http.ResponseWriter, r *http.Request, j *job) {
	from, err := fromIndex(r)
	var replay *generate.Replay
	if err == nil {
		replay, err = v.replay(r.Context(), j)
	}
	if err == nil && from > j.snapshot().state.Events {
		err = apierr.Problem{Status: http.StatusBadRequest, Param: "from",
			Message: fmt.Sprintf("'from' is %d, the job has %d events so far.", from, j.snapshot().state.Events)}
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	f := &follower{check: journal.Journal{Name: j.id}, replay: replay, from: from, out: v.api.NewEventStream(w)}
	f.take = f.send
	v.follow(r.Context(), j, f, func(now snapshot) error {
		if err := f.out.Data("",
			wire.JobEnd{Object: "job.end", State: string(now.state.Phase), Events: now.state.Events, Error: v.show(now).Error}); err != nil {
			return err
		}
		return f.out.Done()
	})
}

// follow sends the events of a job as they arrive, then its end.
func (v *Service) follow(ctx context.Context, j *job, f *follower, end func(snapshot) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	for {
		now := j.snapshot() // taken before the read: a later record closes its changed channel
		if err := f.read(ctx, v.store); err != nil {
			if !errors.Is(err, errGoneClient) && ctx.Err() == nil {
				v.cfg.Logger.Warn("jobs: an event stream broke", "job", j.id, "error", err)
				_, body := apierr.ErrorStatus(routes.Unreadable("The rest of the job's events", err))
				_ = f.out.Data("", body)
			}
			return
		}
		if now.state.Phase.Final() {
			_ = end(now) // the client may be gone
			return
		}
		t := time.NewTimer(v.api.KeepAlive())
		select {
		case <-now.changed:
		case <-t.C:
			if f.out.Comment("keep-alive") != nil {
				cancel()
			}
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

func fromIndex(r *http.Request) (int, error) {
	q, add := r.URL.Query().Get("from"), 0
	if last := r.Header.Get("Last-Event-ID"); last != "" { // a reconnecting browser repeats the URL and adds the header
		q, add = last, 1
	}
	if q == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(q)
	if err != nil || n < 0 || n > 1<<30 {
		return 0, apierr.Problem{Status: http.StatusBadRequest, Param: "from",
			Message: fmt.Sprintf("'from' is %.40q; it must be the index of an event, 0 or more.", q)}
	}
	return n + add, nil
}

// follower reads a growing journal and sends the events from a given index on. It starts reading at
// the first event, because the text of an event depends on the earlier ones.
type follower struct {
	check  journal.Journal
	replay *generate.Replay
	from   int
	next   int
	out    *httpserver.EventStream
	take   func(Logged, generate.TaskDelta) error
}

var errGoneClient = errors.New("jobs: the client left")

func (f *follower) read(ctx context.Context, s *Store) error {
	return s.log.Read(ctx, f.check.Name, f.check.Last(), func(seq uint64, data []byte) error {
		r, err := f.check.Verify(seq, data)
		if err != nil || r.Kind != KindTokens {
			return err
		}
		_, events, err := DecodeTokens(r.Payload)
		if err != nil {
			return err
		}
		for _, e := range events {
			d, err := f.replay.Accept(e.Choice, e.Event)
			if err == nil {
				err = f.take(e, d)
			}
			if err != nil {
				return err
			}
			f.next++
		}
		return nil
	})
}

func (f *follower) send(e Logged, d generate.TaskDelta) error {
	if f.next < f.from {
		return nil
	}
	out := wire.JobEvent{Object: "job.event", Index: f.next, Choice: e.Choice, Text: d.Text}
	if d.Emitted {
		out.Token = &e.Event.Token
	}
	if d.Emitted && e.Event.Top != nil {
		out.Logprob = &e.Event.Logprob
	}
	if d.Finish != "" {
		out.Finish = &d.Finish
	}
	if f.out.Data(strconv.Itoa(f.next), out) != nil {
		return errGoneClient
	}
	return nil
}
