// Package stats computes the results of a load test from the times of its requests. It is pure.
package stats

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Sample is one request.
type Sample struct {
	Sent   time.Duration   // since the start of the load
	Late   time.Duration   // Sent minus the arrival: a busy client, or a limit of concurrency
	First  time.Duration   // since Sent, to the first piece of the answer
	Total  time.Duration   // since Sent, to the end
	Gaps   []time.Duration // between pieces of the answer
	Input  int             // tokens, as the server counts them
	Cached int             // of Input, from a prefix cache
	Output int
	Err    string // why it failed; ""
}

// TPOT returns the time per output token after the first. It is 0 for answers of one token.
func (s *Sample) TPOT() time.Duration {
	if s.Output < 2 {
		return 0
	}
	return (s.Total - s.First) / time.Duration(s.Output-1)
}

// Limits are the objectives of a service; 0: none.
type Limits struct {
	TTFT, TPOT, E2E time.Duration
}

// LimitsUsage describes the syntax of ParseLimits.
const LimitsUsage = "ttft:DURATION, tpot:DURATION, e2e:DURATION"

// ParseLimits reads limits such as "ttft:500ms".
func ParseLimits(words []string) (l Limits, err error) {
	for _, w := range words {
		name, value, _ := strings.Cut(w, ":")
		d, err := time.ParseDuration(value)
		at := map[string]*time.Duration{"ttft": &l.TTFT, "tpot": &l.TPOT, "e2e": &l.E2E}[name]
		if err != nil || d <= 0 || at == nil || *at != 0 {
			return l, fmt.Errorf("limit %q: want one each of %s, such as ttft:500ms", w, LimitsUsage)
		}
		*at = d
	}
	return l, nil
}

// Good reports whether a request has met the limits.
func (l Limits) Good(s *Sample) bool {
	within := func(d, limit time.Duration) bool { return limit == 0 || d <= limit }
	return s.Err == "" && within(s.First, l.TTFT) && within(s.TPOT(), l.TPOT) && within(s.Total, l.E2E)
}

// Text formats limits.
func (l Limits) Text() string {
	var out []string
	for _, x := range []struct {
		name string
		d    time.Duration
	}{{"TTFT", l.TTFT}, {"TPOT", l.TPOT}, {"E2E", l.E2E}} {
		if x.d > 0 {
			out = append(out, fmt.Sprintf("%s %v", x.name, x.d))
		}
	}
	return strings.Join(out, ", ")
}

// Dist is the distribution of one quantity, in milliseconds.
type Dist struct {
	Count  int     `json:"count"`
	Mean   float64 `json:"mean_ms"`
	P50    float64 `json:"p50_ms"`
	P90    float64 `json:"p90_ms"`
	P95    float64 `json:"p95_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
	sorted []float64
}

// Quantile returns the value below which a share of the values is, interpolated linearly between
// neighbours as numpy.percentile does; 0 without values.
func (d *Dist) Quantile(share float64) float64 {
	if len(d.sorted) == 0 {
		return 0
	}
	at := share * float64(len(d.sorted)-1)
	lo := int(math.Floor(at))
	hi := min(lo+1, len(d.sorted)-1)
	return d.sorted[lo] + (at-float64(lo))*(d.sorted[hi]-d.sorted[lo])
}

// DistOf computes a distribution.
func DistOf(values []time.Duration) (d Dist) {
	d.Count = len(values)
	if d.Count == 0 {
		return d
	}
	for _, v := range values {
		ms := float64(v) / float64(time.Millisecond)
		d.sorted = append(d.sorted, ms)
		d.Mean += ms / float64(d.Count)
	}
	slices.Sort(d.sorted)
	d.P50, d.P90, d.P95, d.P99, d.Max = d.Quantile(0.5), d.Quantile(0.9), d.Quantile(0.95), d.Quantile(0.99), d.sorted[d.Count-1]
	return d
}

// Failure counts the requests that failed for one reason.
type Failure struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// Summary is the result of a load.
type Summary struct {
	Requests  int       `json:"requests"`
	Completed int       `json:"completed"`
	Failures  []Failure `json:"failures,omitempty"` // most frequent first
	Seconds   float64   `json:"seconds"`            // from the first request sent to the last answer
	Input     int       `json:"input_tokens"`       // of completed requests
	Cached    int       `json:"cached_tokens"`
	Output    int       `json:"output_tokens"`

	RequestRate float64 `json:"requests_per_s"`
	OutputRate  float64 `json:"output_tokens_per_s"`
	TotalRate   float64 `json:"total_tokens_per_s"`
	Goodput     float64 `json:"goodput_requests_per_s"`
	GoodShare   float64 `json:"good_share"` // of all requests
	Concurrency float64 `json:"mean_concurrency"`

	TTFT Dist `json:"ttft"` // time to first token
	TPOT Dist `json:"tpot"` // time per output token after the first
	ITL  Dist `json:"itl"`  // time between pieces of an answer
	E2E  Dist `json:"e2e"`  // whole request
	Late Dist `json:"late"` // how late requests were sent
}

// Summarize computes the result of a load. Rates count only completed requests.
func Summarize(samples []Sample, limits Limits) Summary {
	s := Summary{Requests: len(samples)}
	reasons := map[string]int{}
	var first, end, busy time.Duration
	var ttft, tpot, itl, e2e, late []time.Duration
	good := 0
	for i := range samples {
		x := &samples[i]
		if i == 0 || x.Sent < first {
			first = x.Sent
		}
		end = max(end, x.Sent+x.Total)
		busy += x.Total
		late = append(late, x.Late)
		if x.Err != "" {
			reasons[x.Err]++
			continue
		}
		s.Completed++
		s.Input, s.Cached, s.Output = s.Input+x.Input, s.Cached+x.Cached, s.Output+x.Output
		ttft, e2e, itl = append(ttft, x.First), append(e2e, x.Total), append(itl, x.Gaps...)
		if x.Output > 1 {
			tpot = append(tpot, x.TPOT())
		}
		if limits.Good(x) {
			good++
		}
	}
	for reason, n := range reasons {
		s.Failures = append(s.Failures, Failure{reason, n})
	}
	slices.SortFunc(s.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	if took := (end - first).Seconds(); took > 0 {
		s.Seconds = took
		s.RequestRate, s.OutputRate = float64(s.Completed)/took, float64(s.Output)/took
		s.TotalRate, s.Goodput = float64(s.Input+s.Output)/took, float64(good)/took
		s.Concurrency = busy.Seconds() / took
	}
	if s.Requests > 0 {
		s.GoodShare = float64(good) / float64(s.Requests)
	}
	s.TTFT, s.TPOT, s.ITL, s.E2E, s.Late = DistOf(ttft), DistOf(tpot), DistOf(itl), DistOf(e2e), DistOf(late)
	return s
}
