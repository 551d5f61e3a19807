package kvpolicy

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"", "full"},
		{"full", "full"},
		{"streaming", "streaming:sink=4,recent=1020"},
		{"streaming:recent=8", "streaming:sink=4,recent=8"},
		{"streaming:recent=8,sink=0", "streaming:sink=0,recent=8"},
		{"streaming:positions=original", "streaming:sink=4,recent=1020"},
		{"streaming:positions=cache,recent=8", "streaming:sink=4,recent=8,positions=cache"},
		{"tova:half=1,positions=cache", "tova:size=1024,positions=cache,half=1"},
	} {
		p, err := Parse(c.spec)
		if err != nil || p.Spec() != c.want {
			t.Errorf("Parse(%q) = %v, %v; want %s", c.spec, p, err, c.want)
		}
	}
	for _, spec := range []string{"snap", "full:x=1", "streaming:", "streaming:sink", "streaming:sink=-1", "streaming:recent=0", "streaming:sink=1,sink=2", "streaming:sink=99999999999999999999", "streaming:topk=3",
		"full:positions=cache", "streaming:positions=text", "streaming:half=1", "streaming:positions=cache,half=2"} {
		if p, err := Parse(spec); !errors.Is(err, kvcache.ErrPolicy) {
			t.Errorf("Parse(%q) = %v, %v; want ErrPolicy", spec, p, err)
		}
	}
	_, err := Parse("unknown")
	for _, u := range Usage() {
		if !strings.Contains(err.Error(), u) {
			t.Errorf("%q does not list %q", err, u)
		}
		if p, err := Parse(u); err != nil || p.Spec() != u {
			t.Errorf("usage %q parses to %v, %v", u, p, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"full", "streaming:sink=4,recent=1020", "streaming:=,", ":", "a:b=c", "streaming:positions=cache,half=1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		p, err := Parse(spec)
		if err != nil {
			return
		}
		again, err := Parse(p.Spec())
		if err != nil || again.Spec() != p.Spec() {
			t.Fatalf("%q -> %q -> %v, %v", spec, p.Spec(), again, err)
		}
	})
}
