package eval

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
)

// Policy is a cache policy as requested and displayed.
type Policy struct {
	Name   string  // in tables and results: as the user wrote it
	Spec   string  // sent as "kv_policy"; "": not sent
	Family string  // policies of one line in the plot
	Budget int     // tokens kept of a long prompt; 0: all, or unknown
	share  float64 // of truncated/N%: the part of a prompt that is read, above 0 and at most 1
}

// ErrPolicyName: NAME/BUDGET has none of the forms below.
var ErrPolicyName = errors.New("eval: policy")

// presets are the forms in the reference table, by budget: NAME/512.
var presets = []struct {
	name, about string
	least       int
	spec        func(budget int) string
}{
	{truncatedName, "full attention to the first and the last half of that many tokens of the text", 2,
		func(int) string { return kvcache.Full().Spec() }},
	{"pyramidkv", "votes of the last 64 tokens, pooled; more tokens in lower layers", 65,
		func(b int) string { return fmt.Sprintf("pyramidkv:topk=%d,obs=64,pool=7,beta=20", b-64) }},
	{"adakv", "votes of the last 64 tokens, pooled; more tokens in heads whose votes are spread", 65,
		func(b int) string { return fmt.Sprintf("adakv:topk=%d,obs=64,pool=7,floor=0.2", b-64) }},
	{"lagkv", "4 sinks, the newest 32, tokens unlike the 32 after them", 37,
		func(b int) string { return fmt.Sprintf("lagkv:sink=4,lag=32,topk=%d", b-36) }},
	{"streaming", "4 sinks and the newest tokens", 5, func(b int) string { return fmt.Sprintf("streaming:sink=4,recent=%d", b-4) }},
	{"snapkv", "votes of the last 64 tokens, pooled", 65, func(b int) string { return fmt.Sprintf("snapkv:topk=%d,obs=64,pool=7", b-64) }},
	{"snapkv_nopool", "the same without pooling", 65, func(b int) string { return fmt.Sprintf("snapkv:topk=%d,obs=64,pool=1", b-64) }},
	{"snapstream", "4 sinks, a ring of 64, top-K by 64 votes", 69,
		func(b int) string { return fmt.Sprintf("snapstream:sink=4,recent=64,topk=%d,obs=64,pool=7", b-68) }},
	{"snapstream_p15", "the same, votes averaged over 15 neighbours", 69,
		func(b int) string { return fmt.Sprintf("snapstream:sink=4,recent=64,topk=%d,obs=64,pool=15", b-68) }},
	{"snapstream_w32", "the same by the votes of 32", 69,
		func(b int) string { return fmt.Sprintf("snapstream:sink=4,recent=64,topk=%d,obs=32,pool=7", b-68) }},
	{"snapstream_half", "a ring of half the budget", 16, func(b int) string {
		return fmt.Sprintf("snapstream:sink=4,recent=%d,topk=%d,obs=64,pool=7", b/2, b-b/2-4)
	}},
	{"sage", "4 sinks, a ring of 64, top-K by the last token", 69,
		func(b int) string { return fmt.Sprintf("sage:sink=4,recent=64,topk=%d", b-68) }},
	{"h2o", "half newest, half heaviest over the prompt", 2, func(b int) string { return fmt.Sprintf("h2o:recent=%d,topk=%d", b/2, b-b/2) }},
	{"h2o_step", "the same, with a new choice at every step", 2,
		func(b int) string { return fmt.Sprintf("h2o:recent=%d,topk=%d,step=1", b/2, b-b/2) }},
	{"tova", "the least attended goes at every step", 2, func(b int) string { return fmt.Sprintf("tova:size=%d", b) }},
	{"knorm", "4 sinks, the newest 64, shortest keys", 69, func(b int) string { return fmt.Sprintf("knorm:sink=4,recent=64,topk=%d", b-68) }},
	{"quest", "pages of 16 that bounds of their keys choose", 32, func(b int) string { return fmt.Sprintf("quest:page=16,budget=%d", b) }},
	{"shadowkv", "landmarks of chunks of 8 and 48 outliers; all that is read", 431, func(b int) string {
		return fmt.Sprintf("shadowkv:chunk=8,budget=%d,outliers=48,local=4", (b-423)/8*8)
	}},
	{"shadowkv_o8", "the same with 8 outliers", 111, func(b int) string {
		return fmt.Sprintf("shadowkv:chunk=8,budget=%d,outliers=8,local=4", (b-103)/8*8)
	}},
	{"shadowkv_c4", "chunks of 4 and 16 outliers", 103, func(b int) string {
		return fmt.Sprintf("shadowkv:chunk=4,budget=%d,outliers=16,local=8", (b-99)/4*4)
	}},
}

// PolicyHelp describes the NAME/BUDGET forms, one per line.
func PolicyHelp() string {
	var b strings.Builder
	for _, p := range presets {
		fmt.Fprintf(&b, "  %-20s %s (%s)\n", p.name+"/512", p.about, p.spec(512))
	}
	return b.String()
}

// CheckPolicies returns an error if this build does not know a policy.
func CheckPolicies(policies []Policy) error {
	for _, p := range policies {
		if p.Spec == "" { // the server's own
			continue
		}
		if _, err := kvpolicy.Parse(p.Spec); err != nil {
			return err
		}
	}
	return nil
}

// ParsePolicy parses "default" (the server's own policy), NAME/BUDGET (see PolicyHelp), or any
// other text, which is sent to the server unchanged.
func ParsePolicy(text string) (Policy, error) {
	text = strings.TrimSpace(text)
	family, rest, short := strings.Cut(text, "/")
	if !short {
		if text == "" || text == DefaultPolicy {
			return Policy{Name: DefaultPolicy, Family: DefaultPolicy}, nil
		}
		family, _, _ = strings.Cut(text, ":")
		return Policy{Name: text, Spec: text, Family: family, Budget: budgetOf(text)}, nil
	}
	var known []string
	for _, p := range presets {
		if known = append(known, p.name+"/BUDGET"); p.name != family {
			continue
		}
		if percent, ok := strings.CutSuffix(rest, "%"); ok && family == truncatedName {
			share, err := strconv.ParseFloat(percent, 64)
			if err != nil || !(share > 0 && share <= 100) {
				return Policy{}, fmt.Errorf("%w %q: the share must be above 0%% and at most 100%%", ErrPolicyName, text)
			}
			return Policy{Name: text, Spec: p.spec(0), Family: family, share: share / 100}, nil
		}
		n, err := strconv.Atoi(rest)
		if err != nil || n < p.least || n > 1<<24 {
			return Policy{}, fmt.Errorf("%w %q: the budget of %s must be a whole number of tokens, at least %d",
				ErrPolicyName, text, family, p.least)
		}
		return Policy{Name: text, Spec: p.spec(n), Family: family, Budget: n}, nil
	}
	return Policy{}, fmt.Errorf("%w %q is unknown; known are %s, or a policy's full text such as streaming:sink=4,recent=508",
		ErrPolicyName, text, strings.Join(known, ", "))
}

// ParsePolicies parses a list. White space and semicolons separate policies.
func ParsePolicies(list []string) ([]Policy, error) {
	var out []Policy
	seen := map[string]bool{}
	for _, entry := range list {
		for _, text := range strings.FieldsFunc(entry, func(r rune) bool { return r == ' ' || r == ';' || r == '\n' }) {
			p, err := ParsePolicy(text)
			if err != nil {
				return nil, err
			}
			if !seen[p.Name] {
				seen[p.Name] = true
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// budgetOf returns how many tokens a known policy keeps or reads of a very long prompt; 0 for full
// attention and for unknown policies.
func budgetOf(spec string) int {
	p, err := kvpolicy.Parse(spec)
	switch {
	case err != nil || p.RebuildsByPrefill() || p.For(1<<20).Spec() != p.Spec(): // shares of the prompt
		return 0
	case p.Selector != nil:
		if n := p.Selector.Reads(1 << 24); n < 1<<16 {
			return n
		}
		return 0 // a fraction of any prompt
	}
	return p.Slots(1<<24, 1<<24)
}
