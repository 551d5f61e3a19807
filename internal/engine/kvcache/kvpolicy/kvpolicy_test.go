package kvpolicy

import (
	"errors"
	"os"
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
		{"knorm:beta=3,layers=pyramid,positions=cache", "knorm:sink=4,recent=64,topk=956,layers=pyramid,beta=3,positions=cache"},
		{"h2o:layers=pyramid", "h2o:recent=512,topk=512,step=0,layers=pyramid,beta=20"},
		{"quest:ring=1", "quest:page=16,budget=1024,skip=0,ring=1"},
		{"shadowkv:ring=32", "shadowkv:chunk=8,budget=256,outliers=48,local=4,int8=0,skip=0,keys=exact,rank=128,ring=32"},
		{"loki:ring=9", "loki:budget=1024,dims=0.25,calib=1024,ring=9"},
		{"infinigen:ring=9", "infinigen:alpha=4,most=0.2,dims=0.3,calib=1024,ring=9"},
		{"squeezed:ring=9", "squeezed:clusters=0.05,levels=1,sparsity=0.9,tail=64,obs=100,segment=8192,ring=9"},
		{"snapkv:half=1,positions=cache,ring=9,layers=pyramid",
			"snapkv:topk=960,obs=64,pool=7,layers=pyramid,beta=20,ring=9,positions=cache,half=1"},
		{"snapkv:heads=ada,floor=0.5,ring=3", "snapkv:topk=960,obs=64,pool=7,heads=ada,floor=0.5,ring=3"},
		{"knorm:heads=ada,layers=pyramid", "knorm:sink=4,recent=64,topk=956,layers=pyramid,beta=20,heads=ada,floor=0.2"},
		{"sage:layers=equal,heads=equal", "sage:sink=4,recent=64,topk=956"},
		{"sage:recall=9,layers=equal", "sage:sink=4,recent=64,topk=956,recall=9,page=16"},
		{"streaming:page=64,recall=1", "streaming:sink=4,recent=1020,recall=1,page=64"},
	} {
		p, err := Parse(c.spec)
		if err != nil || p.Spec() != c.want {
			t.Errorf("Parse(%q) = %v, %v; want %s", c.spec, p, err, c.want)
		}
	}
	for _, spec := range []string{"snap", "full:x=1", "streaming:", "streaming:sink", "streaming:sink=-1",
		"streaming:recent=0", "streaming:sink=1,sink=2", "streaming:sink=99999999999999999999", "streaming:topk=3",
		"full:positions=cache", "streaming:positions=text", "streaming:half=1", "streaming:positions=cache,half=2",
		"full:layers=pyramid", "streaming:layers=pyramid", "tova:layers=pyramid", "h2o:step=1,layers=pyramid",
		"quest:layers=pyramid", "squeezed:layers=pyramid", "pyramidkv:layers=pyramid", "snapkv:layers=square",
		"snapkv:layers=pyramid,beta=0", "snapkv:beta=3", "lagkv:lag=1", "full:heads=ada", "tova:heads=ada", "adakv:heads=ada",
		"resnap:heads=ada", "quest:heads=ada", "snapkv:heads=best", "snapkv:floor=0.2", "snapkv:heads=ada,floor=2",
		"full:ring=5", "quest:ring=0", "shadowkv:ring=31", "quest:ring=9,recall=5", "quest:ring=9,positions=cache",
		"streaming:ring=5", "snapstream:ring=5", "tova:ring=5", "resnap:ring=5",
		"snapkv:ring=0", "snapkv:ring=-1", "snapkv:ring=0%", "snapkv:ring=101%", "squeezed:ring=9,positions=cache",
		"full:recall=5", "quest:recall=5", "squeezed:recall=5", "snapkv:recall=5", "snapkv:ring=9,recall=5", "h2o:step=1,recall=5",
		"resnap:recall=5", "snapstream:recall=0", "snapstream:page=32", "snapstream:recall=5,page=24", "snapstream:recall=5,page=8",
		"snapstream:recall=5,ring=5", "snapstream:recall=5,layers=pyramid", "sage:recall=5,heads=ada", "streaming:recall=5,positions=cache"} {
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

// TestShares checks that a share becomes a number of tokens, and that a bad one is refused.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		spec, canonical string
		prompt          int
		want            string
	}{
		{"snapkv:topk=5%", "snapkv:topk=5%,obs=64,pool=7", 1999, "snapkv:topk=99,obs=64,pool=7"},
		{"snapkv:topk=100%", "snapkv:topk=100%,obs=64,pool=7", 7, "snapkv:topk=7,obs=64,pool=7"},
		{"streaming:sink=0.5%,recent=12.5%", "streaming:sink=0.5%,recent=12.5%", 1 << 20, "streaming:sink=5242,recent=131072"},
		{"streaming:recent=1%", "streaming:sink=4,recent=1%", 30, "streaming:sink=4,recent=1"}, // at least its minimum
		{"streaming:recent=0.001%,positions=cache,half=1", "streaming:sink=4,recent=0.001%,positions=cache,half=1",
			300_000, "streaming:sink=4,recent=3,positions=cache,half=1"},
		{"snapkv:topk=5", "snapkv:topk=5,obs=64,pool=7", 1000, "snapkv:topk=5,obs=64,pool=7"},
		{"shadowkv:paper", "shadowkv:chunk=8,budget=1.56%,outliers=48,local=4,int8=0,skip=0,keys=lowrank,rank=160",
			131072, "shadowkv:chunk=8,budget=2044,outliers=48,local=4,int8=0,skip=0,keys=lowrank,rank=160"},
		{"shadowkv:paper,rank=8", "shadowkv:chunk=8,budget=1.56%,outliers=48,local=4,int8=0,skip=0,keys=lowrank,rank=8",
			10, "shadowkv:chunk=8,budget=2,outliers=48,local=4,int8=0,skip=0,keys=lowrank,rank=8"},
		{"knorm:topk=7,ring=10%,positions=cache", "knorm:sink=4,recent=64,topk=7,ring=10%,positions=cache",
			1234, "knorm:sink=4,recent=64,topk=7,ring=123,positions=cache"},
		{"shadowkv:ring=1%,local=3", "shadowkv:chunk=8,budget=256,outliers=48,local=3,int8=0,skip=0,keys=exact,rank=128,ring=1%",
			2000, "shadowkv:chunk=8,budget=256,outliers=48,local=3,int8=0,skip=0,keys=exact,rank=128,ring=24"},
		{"lagkv:topk=7,layers=pyramid,ring=0.1%", "lagkv:sink=4,lag=128,topk=7,layers=pyramid,beta=20,ring=0.1%",
			9, "lagkv:sink=4,lag=128,topk=7,layers=pyramid,beta=20,ring=1"},
		{"snapstream:r1", "snapstream:sink=4,recent=12.5%,topk=12.5%,obs=64,pool=7,votes=prefix",
			1024, "snapstream:sink=4,recent=128,topk=128,obs=64,pool=7,votes=prefix"},
		{"snapstream:r1,recall=1.56%", "snapstream:sink=4,recent=12.5%,topk=12.5%,obs=64,pool=7,votes=prefix,recall=1.56%,page=16",
			4096, "snapstream:sink=4,recent=512,topk=512,obs=64,pool=7,votes=prefix,recall=63,page=16"},
	} {
		p, err := Parse(c.spec)
		if err != nil || p.Spec() != c.canonical {
			t.Errorf("Parse(%q) = %v, %v; want %s", c.spec, p, err, c.canonical)
			continue
		}
		of := p.For(c.prompt)
		twin, err := Parse(c.want)
		if err != nil || of.Spec() != c.want || of.Slots(c.prompt, c.prompt+9) != twin.Slots(c.prompt, c.prompt+9) || of.For(3) != of {
			t.Errorf("%s of %d tokens is %s with %d slots, %v; want %s", c.spec, c.prompt, of.Spec(), of.Slots(c.prompt, c.prompt+9), err, c.want)
		}
	}
	for _, spec := range []string{"snapkv:topk=0%", "snapkv:topk=101%", "snapkv:topk=100.001%", "snapkv:topk=-5%",
		"snapkv:topk=NaN%", "snapkv:topk=Inf%", "snapkv:topk=1e300%", "snapkv:topk=99999999999999999999%",
		"snapkv:topk=%", "snapkv:topk=5%%", "snapkv:topk=0.0001%", "snapkv:pool=5%", "squeezed:sparsity=5%",
		"quest:page=50%", "snapkv:topk=NaN", "snapkv:topk=1.5",
		"shadowkv:thesis", "shadowkv:budget=2,paper", "shadowkv:paper,paper", "shadowkv:paper,rank=8,rank=8", "full:paper"} {
		if p, err := Parse(spec); !errors.Is(err, kvcache.ErrPolicy) {
			t.Errorf("Parse(%q) = %v, %v; want ErrPolicy", spec, p, err)
		}
	}
}

// TestNamed checks that every named setting can be parsed, and that the error of an unknown one lists it.
func TestNamed(t *testing.T) {
	for _, m := range known {
		for _, n := range m.Named {
			if _, err := Parse(m.Name + ":" + n.Name); err != nil {
				t.Error(err)
			}
			if _, err := Parse(m.Name + ":unknown"); !strings.Contains(err.Error(), m.Name+":"+n.Name) {
				t.Errorf("%q does not name %s", err, n.Name)
			}
		}
	}
}

// TestHelp checks that the error of each policy lists exactly the options that the policy takes, and that the table of
// docs/caches.md has the parameters and defaults of each policy.
func TestHelp(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/caches.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range known {
		_, params, _ := strings.Cut(m.Usage(), ":")
		if row := "| `" + m.Name + "` | `" + params + "` |"; params != "" && !strings.Contains(string(page), row) {
			t.Errorf("docs/caches.md has no row %q", row)
		}
		_, err := Parse(m.Name + ":unknown=1")
		for _, option := range []string{"layers=pyramid,beta=20", "heads=ada,floor=0.2", "ring=64", "recall=64,page=16",
			"positions=cache,half=0", "votes=prefix"} {
			_, refused := Parse(m.Name + ":" + option)
			key, _, _ := strings.Cut(option, "=")
			if listed := strings.Contains(err.Error(), " ["+key+"="); listed != (refused == nil) {
				t.Errorf("%s takes %s: %v; its help lists it: %v: %v", m.Name, option, refused == nil, listed, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"full", "streaming:sink=4,recent=1020", "streaming:=,", ":", "a:b=c", "streaming:positions=cache,half=1",
		"snapkv:topk=5%", "shadowkv:paper,rank=8", "h2o:paper,positions=cache", "snapkv:topk=5%,layers=pyramid,beta=3,positions=cache",
		"sage:topk=5%,recall=3%,page=32", "shadowkv:ring=5%,local=9"} {
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
