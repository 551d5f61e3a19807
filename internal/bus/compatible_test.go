package bus

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/gossip"
)

func TestUnlike(t *testing.T) {
	mine := gossip.Meta{Build: "v2 abc", Arithmetic: "1-aa", WireMin: 2, WireMax: 3}
	for _, c := range []struct {
		is   string
		like bool
		says []string
		m    gossip.Meta
	}{
		{"the same", true, nil, mine},
		{"another build of the same arithmetic", true, nil, gossip.Meta{Build: "v3", Arithmetic: "1-aa", WireMin: 3, WireMax: 4}},
		{"another arithmetic", false, []string{"v2 abc", "1-aa", "v3", "1-bb", "different bits"},
			gossip.Meta{Build: "v3", Arithmetic: "1-bb", WireMin: 2, WireMax: 2}},
		{"another version of it", false, []string{"2-aa"}, gossip.Meta{Build: "v3", Arithmetic: "2-aa", WireMin: 2, WireMax: 2}},
		{"a newer wire", false, []string{"v2 abc", "wire versions 2 to 3", "v9", "wire version 4"},
			gossip.Meta{Build: "v9", Arithmetic: "1-aa", WireMin: 4, WireMax: 4}},
		{"an older wire", false, []string{"wire version 1"}, gossip.Meta{Arithmetic: "1-aa", WireMin: 1, WireMax: 1}},
		{"a build without versions", false, []string{"unknown wire version"}, gossip.Meta{}},
		{"a build with its wire version only", false, []string{"unknown arithmetic"}, gossip.Meta{WireMin: 2, WireMax: 2}},
	} {
		for _, why := range []string{incompatible("a", &mine, "b", &c.m), incompatible("b", &c.m, "a", &mine)} {
			if (why == "") != c.like {
				t.Errorf("%s: %q", c.is, why)
			}
			for _, word := range c.says {
				if !strings.Contains(why, word) {
					t.Errorf("%s: %q lacks %q", c.is, why, word)
				}
			}
		}
	}
	var none gossip.Meta
	if incompatible("a", &none, "b", &none) == "" {
		t.Error("two builds without versions were compatible")
	}
}
