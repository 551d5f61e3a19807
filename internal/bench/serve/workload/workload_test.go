package workload_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/bench/serve/workload"
)

func draw(t *testing.T, arrival string, rate float64, lengths string, n int) []workload.Request {
	t.Helper()
	a, err := workload.ParseArrivals(arrival, rate)
	if err != nil {
		t.Fatal(err)
	}
	l, err := workload.ParseLengths(lengths)
	if err != nil {
		t.Fatal(err)
	}
	s := workload.Spec{Arrivals: a, Lengths: l, Requests: n, PrefixGroups: 1, Seed: 7}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s.Draw()
}

// moments returns mean and coefficient of variation.
func moments(v []float64) (mean, cv float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		cv += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(cv) / mean
}

// TestArrivals: gaps have the mean and the variation of their process.
func TestArrivals(t *testing.T) {
	for _, c := range []struct {
		name     string
		mean, cv float64 // gaps in seconds
	}{{"poisson", 0.1, 1}, {"constant", 0.1, 0}, {"gamma:0.25", 0.1, 2}, {"gamma:4", 0.1, 0.5}, {"burst:1", 0.1, 1}} {
		requests := draw(t, c.name, 10, "fixed:1:1", 20000)
		var gaps []float64
		for i := 1; i < len(requests); i++ {
			gaps = append(gaps, (requests[i].At - requests[i-1].At).Seconds())
		}
		if mean, cv := moments(gaps); math.Abs(mean-c.mean) > 0.005 || math.Abs(cv-c.cv) > 0.06*max(1, c.cv) {
			t.Errorf("%s: gaps have mean %.4f and variation %.3f, want %.4f and %.3f", c.name, mean, cv, c.mean, c.cv)
		}
	}
	requests := draw(t, "burst:8", 10, "fixed:1:1", 8000)
	for i := range requests {
		if requests[i].At != requests[i/8*8].At {
			t.Fatalf("request %d does not arrive with its burst", i)
		}
	}
	if took := requests[7999].At; took < 700*time.Second || took > 900*time.Second {
		t.Errorf("8000 requests in bursts at 10 per second take %v", took)
	}
	for _, r := range draw(t, "poisson", 0, "fixed:1:1", 10) {
		if r.At != 0 {
			t.Error("a closed loop waits for an arrival")
		}
	}
}

// TestLengths: lengths have the mean of their distribution and stay within the bounds.
func TestLengths(t *testing.T) {
	for _, c := range []struct {
		name    string
		in, out float64
	}{{"fixed:512:64", 512, 64}, {"uniform:100:300:200", 200, 150}, {"lognormal:200:100:0.5", 200, 100},
		{"sharegpt", 161, 338}, {"10:1", 1000, 100}, {"10:1:4000", 4000, 400}} {
		var in, out []float64
		for _, r := range draw(t, "poisson", 0, c.name, 20000) {
			in, out = append(in, float64(r.Input)), append(out, float64(r.Output))
			if strings.HasPrefix(c.name, "10:1") && math.Abs(float64(r.Input)/10-float64(r.Output)) > 0.51 {
				t.Fatalf("%s: %d and %d", c.name, r.Input, r.Output)
			}
		}
		i, spread := moments(in)
		o, _ := moments(out)
		if math.Abs(i/c.in-1) > 0.04 || math.Abs(o/c.out-1) > 0.04 {
			t.Errorf("%s: means %.1f and %.1f, want %.0f and %.0f", c.name, i, o, c.in, c.out)
		}
		if c.name == "sharegpt" && math.Abs(spread-math.Sqrt(math.E-1)) > 0.15 {
			t.Errorf("sharegpt: variation %.2f, want %.2f", spread, math.Sqrt(math.E-1))
		}
	}
	l, _ := workload.ParseLengths("sharegpt")
	l.MaxInput, l.MaxOutput = 50, 20
	a, _ := workload.ParseArrivals("poisson", 0)
	s := workload.Spec{Arrivals: a, Lengths: l, Requests: 1000, PrefixGroups: 1}
	for _, r := range s.Draw() {
		if r.Input < 1 || r.Input > 50 || r.Output < 1 || r.Output > 20 {
			t.Fatalf("lengths %d and %d", r.Input, r.Output)
		}
	}
}

// TestText: prompts have the asked number of tokens; only prompts of one group share a prefix.
func TestText(t *testing.T) {
	a, _ := workload.ParseArrivals("poisson", 0)
	l, _ := workload.ParseLengths("fixed:40:10")
	s := workload.Spec{Arrivals: a, Lengths: l, Requests: 60, PrefixTokens: 30, PrefixGroups: 3, Seed: 1}
	tokens, err := workload.FitTokens([2]int{10, 110}, [2]int{25, 225}) // two a word, five of the template
	if err != nil || tokens.PerWord != 2 || tokens.Fixed != 5 {
		t.Fatalf("%+v, %v", tokens, err)
	}
	byGroup := map[int]string{}
	own := map[string]bool{}
	for _, r := range s.Draw() {
		words := strings.Fields(tokens.Text(r))
		if n := 2*len(words) + 5; n < 69 || n > 71 {
			t.Fatalf("%d tokens, want 70", n)
		}
		prefix, rest := strings.Join(words[:13], " "), strings.Join(words[13:], " ")
		if first, ok := byGroup[r.Group]; ok && first != prefix {
			t.Error("two prompts of one group begin differently")
		}
		byGroup[r.Group] = prefix
		if own[rest] {
			t.Error("two prompts have the same end")
		}
		own[rest] = true
	}
	if len(byGroup) != 3 || byGroup[0] == byGroup[1] {
		t.Errorf("prefixes %v", byGroup)
	}
	if _, err := workload.FitTokens([2]int{10, 110}, [2]int{25, 25}); err == nil {
		t.Error("a server that counts no words was accepted")
	}
}

// TestSameSeed: one seed gives one load, another seed another.
func TestSameSeed(t *testing.T) {
	a, b := draw(t, "gamma:0.5", 3, "sharegpt", 50), draw(t, "gamma:0.5", 3, "sharegpt", 50)
	for i := range a {
		if a[i] != b[i] {
			t.Fatal("two draws differ")
		}
	}
	other := workload.Tokens{PerWord: 1}
	if x, y := other.Text(a[0]), other.Text(a[1]); x == y {
		t.Error("two requests have the same text")
	}
}

func TestErrors(t *testing.T) {
	for _, text := range []string{"", "poison", "gamma", "gamma:0", "gamma:NaN", "burst:0", "burst:x", "poisson:1"} {
		if _, err := workload.ParseArrivals(text, 1); err == nil {
			t.Errorf("arrival %q was accepted", text)
		}
	}
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1), 1e9} {
		if _, err := workload.ParseArrivals("poisson", rate); err == nil {
			t.Errorf("rate %g was accepted", rate)
		}
	}
	for _, text := range []string{"", "fixed", "fixed:1", "fixed:0:1", "fixed:1.5:2", "fixed:1:2000000",
		"uniform:5:3:9", "lognormal:1:2:9", "10:1:x", "10:1:5", "ratio", "share"} {
		if _, err := workload.ParseLengths(text); err == nil {
			t.Errorf("lengths %q were accepted", text)
		}
	}
	for _, s := range []workload.Spec{
		{Requests: 0, PrefixGroups: 1},
		{Requests: 1, PrefixGroups: 2},
		{Requests: 1, PrefixGroups: 1, PrefixTokens: -1},
	} {
		if s.Validate() == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}
