package cluster_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// goodHistory returns the history of a job during a fault: two attempts, a broken stream, a client
// that requested events again.
func goodHistory() *jobHistory {
	at := time.Unix(1000, 0)
	event := func(i int, text string, score float32, after time.Duration) sight {
		token := 100 + i
		return sight{jobEvent{Object: "job.event", Index: i, Token: &token, Text: text, Logprob: &score, line: text}, at.Add(after)}
	}
	a, b, c := event(0, "a", -1, 0), event(1, "b", -2, time.Second), event(2, "c", -3, 4*time.Second)
	const result = `{"choices":[{"text":"abc","logprobs":{"token_logprobs":[-1,-2,-3]}}],"usage":{"completion_tokens":3}}`
	return &jobHistory{name: "job", want: result + "\n", ids: []string{"j1", "j1"},
		visits: []visit{{from: 0, events: []sight{a, b}}, {from: 1, events: []sight{b, c}, end: "completed", count: 3}},
		looks: []look{
			{state: "queued"},
			{state: "running", attempt: 1, events: 2},
			{state: "completed", attempt: 2, events: 3, result: result},
			{state: "completed", attempt: 2, events: 3, result: result},
		},
		journal: []entry{{1, 0}, {2, 1}, {3, 1}, {2, 2}, {3, 2}, {8, 2}, {5, 2}}}
}

// TestHistoryCheck falsifies the history of a job: the check must detect each falsification.
func TestHistoryCheck(t *testing.T) {
	if wrong := goodHistory().check(); len(wrong) > 0 {
		t.Fatalf("a good history is refused: %v", wrong)
	}
	other := func(e *sight) { e.line, e.Text = "x", "x" }
	for _, x := range []struct {
		say    string // part of the finding
		doctor func(l *jobHistory)
	}{
		{"I1: never acknowledged", func(l *jobHistory) { l.ids = nil }},
		{"I1: its key gave the jobs [j1 j2]", func(l *jobHistory) { l.ids[1] = "j2" }},
		{"is not there", func(l *jobHistory) { l.looks[1] = look{missing: true} }},
		{"I8: no stream saw its end", func(l *jobHistory) { l.visits[1].end = "" }},
		{`I8: it is "running" at the end`, func(l *jobHistory) { l.looks = l.looks[:2] }},
		{`I8: it is "" at the end`, func(l *jobHistory) { l.looks = nil }},
		{"ended as dead", func(l *jobHistory) { l.visits[1].end = "dead" }},
		{"I10: it had ended", func(l *jobHistory) { l.looks[2].state = "dead" }},
		{"I10: it had ended", func(l *jobHistory) { l.looks[2].result = "{}" }},
		{"I10: it had ended", func(l *jobHistory) { l.looks[3].attempt = 3 }},
		{"I4: attempt 0 after 1", func(l *jobHistory) { l.looks[0].attempt, l.looks[1].attempt = 1, 0 }},
		{"I2: 1 events after 2", func(l *jobHistory) { l.looks[0].events, l.looks[1].events = 2, 1 }},
		{"differs from the undisturbed run", func(l *jobHistory) { l.want = strings.ReplaceAll(l.want, "-3", "-4") }},
		{"events have the scores", func(l *jobHistory) { l.want = strings.ReplaceAll(l.want, "-3", "-4") }},
		{"have another text", func(l *jobHistory) { other(&l.visits[1].events[1]) }},
		{"I2: index 1 was b and then x", func(l *jobHistory) { other(&l.visits[1].events[0]) }},
		{"index 2 came where 1 was due", func(l *jobHistory) { l.visits[0].events = l.visits[1].events[1:]; l.visits[0].from = 1 }},
		{"index 2 came where 1 was due", func(l *jobHistory) { l.visits[0].events[1].Index = 2 }},
		{"index 1 came where 2 was due", func(l *jobHistory) {
			v := &l.visits[1]
			v.events = slices.Insert(v.events, 1, v.events[0])
		}},
		{"I2: index 2 came after 1 events", func(l *jobHistory) {
			l.visits[0].events = l.visits[0].events[:1]
			l.visits[1].from, l.visits[1].events = 2, l.visits[1].events[1:]
		}},
		{"job.end counts 2 events", func(l *jobHistory) { l.visits[1].count = 2 }},
		{"I3: 2 tokens were streamed", func(l *jobHistory) { l.visits[1].events = l.visits[1].events[:1] }},
		{"3 events, 2 were streamed", func(l *jobHistory) { l.visits[1].events = l.visits[1].events[:1] }},
		{"follows the commit", func(l *jobHistory) { l.journal = append(l.journal, entry{5, 2}) }},
		{"I10: 2 results are committed", func(l *jobHistory) { l.journal = append(l.journal, entry{5, 2}) }},
		{"I10: 0 results are committed", func(l *jobHistory) { l.journal = l.journal[:6] }},
		{"is of attempt 1, 2 is the newest", func(l *jobHistory) { l.journal[4].attempt = 1 }},
		{"is of attempt 3, 2 is the newest", func(l *jobHistory) { l.journal[3].attempt = 3 }},
		{"I10: 0 results are committed in 0 records", func(l *jobHistory) { l.journal = nil }},
	} {
		l := goodHistory()
		x.doctor(l)
		wrong := l.check()
		if !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, x.say) }) {
			t.Errorf("a history with the fault %q gives the findings %q", x.say, wrong)
		}
	}
}

// TestSilences: the silence around a fault is that of the most affected stream, across broken
// connections.
func TestSilences(t *testing.T) {
	l := goodHistory()
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	got := silences([]*jobHistory{l}, []time.Time{at(2000), at(500), at(5000)})
	if want := []time.Duration{time.Second, 3 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
