package stats_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/bench/serve/stats"
)

const ms = time.Millisecond

// TestSummary checks every number of a load that was computed by hand.
func TestSummary(t *testing.T) {
	samples := []stats.Sample{
		{Sent: 1000 * ms, First: 100 * ms, Total: 500 * ms, Gaps: []time.Duration{100 * ms, 300 * ms}, Input: 10, Output: 3, Cached: 4},
		{Sent: 1500 * ms, First: 300 * ms, Total: 1500 * ms, Gaps: []time.Duration{1200 * ms}, Input: 20, Output: 2, Late: 50 * ms},
		{Sent: 1200 * ms, First: 200 * ms, Total: 200 * ms, Input: 30, Output: 1},
		{Sent: 1200 * ms, Total: 800 * ms, Err: "503"},
	}
	s := stats.Summarize(samples, stats.Limits{TTFT: 250 * ms, TPOT: 250 * ms})
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	near("seconds", s.Seconds, 2)
	near("requests per second", s.RequestRate, 1.5)
	near("output rate", s.OutputRate, 3)
	near("total rate", s.TotalRate, 33)
	near("goodput", s.Goodput, 1)
	near("good share", s.GoodShare, 0.5)
	near("concurrency", s.Concurrency, 1.5)
	near("median TTFT", s.TTFT.P50, 200)
	near("p90 TTFT", s.TTFT.P90, 280)
	near("mean TPOT", s.TPOT.Mean, 700)
	near("count of TPOT", float64(s.TPOT.Count), 2)
	near("median ITL", s.ITL.P50, 300)
	near("maximum E2E", s.E2E.Max, 1500)
	near("maximum lateness", s.Late.Max, 50)
	if s.Requests != 4 || s.Completed != 3 || s.Input != 60 || s.Cached != 4 || s.Output != 6 ||
		len(s.Failures) != 1 || s.Failures[0] != (stats.Failure{Reason: "503", Count: 1}) {
		t.Errorf("%+v", s)
	}
	if empty := stats.Summarize(nil, stats.Limits{}); empty.Seconds != 0 || empty.TTFT.P99 != 0 || empty.GoodShare != 0 {
		t.Errorf("no requests: %+v", empty)
	}
}

func TestLimits(t *testing.T) {
	l, err := stats.ParseLimits([]string{"ttft:500ms", "tpot:20ms"})
	if err != nil || l.Text() != "TTFT 500ms, TPOT 20ms" {
		t.Errorf("%+v %v", l, err)
	}
	if !l.Good(&stats.Sample{First: 500 * ms, Total: 520 * ms, Output: 2}) ||
		l.Good(&stats.Sample{First: 500 * ms, Total: 521 * ms, Output: 2}) || l.Good(&stats.Sample{Err: "x"}) {
		t.Error("a limit is not kept")
	}
	for _, bad := range []string{"ttft", "ttft:", "ttft:0s", "ttft:-1s", "itl:1s", "ttft:5"} {
		if _, err := stats.ParseLimits([]string{bad}); err == nil || !strings.Contains(err.Error(), "want one each of") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := stats.ParseLimits([]string{"ttft:1s", "ttft:2s"}); err == nil {
		t.Error("two limits of one kind were accepted")
	}
}

// TestSVG: a plot is well-formed, and has a line per load and panel that has values.
func TestSVG(t *testing.T) {
	s := stats.Summarize([]stats.Sample{
		{First: 5 * ms, Total: 50 * ms, Gaps: []time.Duration{ms, 2 * ms}, Output: 3},
		{First: 7 * ms, Total: 9 * ms, Output: 1},
	}, stats.Limits{})
	none := stats.Summarize(nil, stats.Limits{})
	text := stats.SVG("a <b> & c", []stats.Line{{Label: "1/s", Summary: &s}, {Label: "none", Summary: &none}})
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(text, "stroke-width"); n != 4 {
		t.Errorf("%d lines, want 4", n)
	}
	if !strings.Contains(text, "a &lt;b&gt; &amp; c") || len(text) > 20000 || strings.Contains(text, "NaN") {
		t.Errorf("%d bytes: %.300s", len(text), text)
	}
}
