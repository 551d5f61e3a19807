package cluster_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
)

// jobHistory has every answer that clients got about a job, and its journal. Only one goroutine at a
// time writes it.
type jobHistory struct {
	name    string
	want    string   // canonical result of the undisturbed run
	ids     []string // the id of each acknowledgement of its key
	visits  []visit  // streams of its events
	looks   []look   // answers to GET /v1/jobs/{id}, in order
	journal []entry  // its records on disk, in order
}

// visit is one connection to a job's events.
type visit struct {
	from   int
	events []sight
	end    string // state in job.end; "" if the stream broke before
	count  int    // event count in job.end
}

type sight struct {
	jobEvent
	at time.Time
}

type look struct {
	state           string
	attempt, events int
	result          string // canonical
	missing         bool   // 404
}

// entry is one record of a journal.
type entry struct{ kind, attempt int }

// ended reports whether a state is final.
func ended(state string) bool { return state == "completed" || state == "dead" || state == "cancelled" }

// check returns the violations of the guarantees for a job, each with its invariant's name
// (audit_test.go). The job has one id, is present at every query, and its state never goes back.
// Its events have consecutive indices, each with a single content, and match the result. Exactly
// one result was committed, and it equals the undisturbed run's.
func (l *jobHistory) check() (wrong []string) {
	fault := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)+" ("+l.name+")") }
	if len(l.ids) == 0 {
		fault("I1: never acknowledged")
		return wrong
	}
	if ids := slices.Compact(slices.Sorted(slices.Values(l.ids))); len(ids) > 1 {
		fault("I1: its key gave the jobs %v", ids)
	}
	events := l.checkVisits(fault)
	l.checkLooks(len(events), fault)
	l.checkEvents(events, fault)
	l.checkJournal(fault)
	return wrong
}

type faultFunc func(format string, a ...any)

func (l *jobHistory) checkVisits(fault faultFunc) (events []jobEvent) {
	ends := 0
	for _, v := range l.visits {
		next := v.from
		for _, e := range v.events {
			if e.Index != next {
				fault("I2: attached with from=%d, index %d came where %d was due", v.from, e.Index, next)
			}
			next = e.Index + 1
			switch {
			case e.Index < len(events) && events[e.Index].line != e.line:
				fault("I2: index %d was %s and then %s", e.Index, events[e.Index].line, e.line)
			case e.Index == len(events):
				events = append(events, e.jobEvent)
			case e.Index > len(events):
				fault("I2: index %d came after %d events", e.Index, len(events))
			}
		}
		if v.end == "" {
			continue
		}
		ends++
		if v.end != "completed" {
			fault("I8: its stream ended as %s", v.end)
		}
		if v.count != next {
			fault("I2: its stream ended after index %d, job.end counts %d events", next-1, v.count)
		}
	}
	if ends == 0 {
		fault("I8: no stream saw its end")
	}
	return events
}

func (l *jobHistory) checkLooks(events int, fault faultFunc) {
	var last look
	for _, k := range l.looks {
		switch {
		case k.missing:
			fault("I1: it was accepted and is not there")
			continue
		case ended(last.state) && (k.state != last.state || k.attempt != last.attempt || k.events != last.events || k.result != last.result):
			fault("I10: it had ended as %+v and is %+v", last, k)
		case k.attempt < last.attempt:
			fault("I4: attempt %d after %d", k.attempt, last.attempt)
		case k.events < last.events:
			fault("I2: %d events after %d", k.events, last.events)
		}
		last = k
	}
	switch {
	case last.state != "completed":
		fault("I8: it is %q at the end", last.state)
	case last.result != strings.TrimSpace(l.want):
		fault("I3: its result differs from the undisturbed run %s", firstDifference(strings.TrimSpace(l.want), last.result))
	case last.events != events:
		fault("I2: it has %d events, %d were streamed", last.events, events)
	}
}

// checkEvents compares the streamed events with the undisturbed result: text, number of tokens, and
// scores.
func (l *jobHistory) checkEvents(events []jobEvent, fault faultFunc) {
	want := struct {
		Choices []struct {
			Text     string
			Logprobs *struct {
				Scores []float32 `json:"token_logprobs"`
			}
		}
		Usage struct {
			Tokens int `json:"completion_tokens"`
		}
	}{}
	if err := json.Unmarshal([]byte(l.want), &want); err != nil {
		fault("the undisturbed result %.200q: %v", l.want, err)
		return
	}
	text, scores, tokens := make([]string, len(want.Choices)), make([][]float32, len(want.Choices)), 0
	for _, e := range events {
		if e.Choice < 0 || e.Choice >= len(want.Choices) {
			fault("I3: event %s is of choice %d of %d", e.line, e.Choice, len(want.Choices))
			return
		}
		text[e.Choice] += e.Text
		if e.Token != nil {
			tokens++
		}
		if e.Logprob != nil {
			scores[e.Choice] = append(scores[e.Choice], *e.Logprob)
		}
	}
	if tokens != want.Usage.Tokens {
		fault("I3: %d tokens were streamed, the undisturbed run has %d", tokens, want.Usage.Tokens)
	}
	for i, c := range want.Choices {
		if text[i] != c.Text {
			fault("I3: its events have another text %s", firstDifference(c.Text, text[i]))
		}
		if c.Logprobs != nil && !slices.Equal(scores[i], c.Logprobs.Scores) {
			fault("I3: its events have the scores %v, the undisturbed run %v", scores[i], c.Logprobs.Scores)
		}
	}
}

// Kinds of records that the checker uses.
const recordStart, recordDone = int(jobs.KindStart), int(jobs.KindDone)

func (l *jobHistory) checkJournal(fault faultFunc) {
	done, attempt := 0, 0
	for i, r := range l.journal {
		if r.kind == recordStart {
			attempt++
		}
		if r.attempt != attempt {
			fault("I4: record %d is of attempt %d, %d is the newest", i, r.attempt, attempt)
		}
		if done > 0 {
			fault("I10: record %d (kind %d) follows the commit", i, r.kind)
		}
		if r.kind == recordDone {
			done++
		}
	}
	if done != 1 {
		fault("I10: %d results are committed in %d records", done, len(l.journal))
	}
}

// gaps returns the silences of a job's streams, from one new event to the next.
func (l *jobHistory) gaps() (out [][2]time.Time) {
	next := 0
	var last time.Time
	for _, v := range l.visits {
		for _, e := range v.events {
			if e.Index != next {
				continue
			}
			if next > 0 {
				out = append(out, [2]time.Time{last, e.at})
			}
			last, next = e.at, next+1
		}
	}
	return out
}

// silences returns, for each moment, the longest silence of any job around it. Jobs without a
// silence around a moment do not count.
func silences(lives []*jobHistory, moments []time.Time) (out []time.Duration) {
	for _, m := range moments {
		worst := time.Duration(0)
		for _, l := range lives {
			for _, g := range l.gaps() {
				if !m.Before(g[0]) && m.Before(g[1]) {
					worst = max(worst, g[1].Sub(g[0]))
				}
			}
		}
		if worst > 0 {
			out = append(out, worst)
		}
	}
	slices.Sort(out)
	return out
}
