package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// audit reads the store at the end. Every accepted job must be there and have ended once, with the
// tokens and the result of the undisturbed run. Each attempt must be written by the coordinator that
// started it.
func (k *checker) audit() {
	d := &k.w.disk
	for _, c := range k.w.clients {
		if !c.job || !c.asked || k.broken != "" {
			continue
		}
		s := d.shelves[c.spec.ID]
		if s == nil || len(s.messages) == 0 {
			k.fail("I1: job %s was accepted, and nothing of it is in the store", c.spec.ID)
			return
		}
		if !s.torn {
			k.auditJob(c, s)
		}
	}
}

func (k *checker) auditJob(c *client, s *shelf) {
	var state jobs.State
	var events []jobs.Logged
	var part []byte
	var done committed
	var runs *coordinator // the attempt
	j := journal.Journal{Name: c.spec.ID}
	for _, m := range s.messages {
		r, err := j.Verify(m.Seq, m.Data)
		if err != nil {
			k.fail("I1: %v", err)
			return
		}
		n, err := jobs.UpdateOf(&r)
		if err == nil {
			err = state.Apply(n)
		}
		if err != nil {
			k.fail("I10: message %d of job %s cannot follow: %v", m.Seq, c.spec.ID, err)
			return
		}
		switch n.Kind {
		case jobs.KindTokens, jobs.KindPart, jobs.KindRetry, jobs.KindDone:
			if s.from[m.Seq] != runs {
				k.fail("I10: message %d of job %s, of attempt %d, is not by who began it", m.Seq, c.spec.ID, n.Attempt)
				return
			}
		}
		switch n.Kind {
		case jobs.KindStart:
			runs = s.from[m.Seq]
		case jobs.KindTokens:
			_, more, _ := jobs.DecodeTokens(r.Payload)
			events = append(events, more...)
		case jobs.KindPart:
			part = r.Payload
		case jobs.KindDone:
			_ = json.Unmarshal(r.Payload, &done)
		}
	}
	if !state.Phase.Final() || len(events) < c.next {
		k.fail("I1: job %s is %s with %d events in the store, its client has had %d", c.spec.ID, state.Phase, len(events), c.next)
	}
	for i, t := 0, c.truth().tokens; i < len(events); i++ {
		if token := events[i].Event.Token; token != engine.NoToken && (i >= len(t) || t[i] != token) {
			k.fail("I3: event %d of job %s is token %d, the undisturbed run has %v", i, c.spec.ID, token, t)
			return
		}
	}
	if sum := sha256.Sum256(part); state.Phase == jobs.Completed && (!bytes.Equal(sum[:], done.Sum) || !bytes.Equal(part, result(events))) {
		k.fail("I10: the result of job %s differs from the committed one", c.spec.ID)
	}
}
