package kvcache

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrPolicy means that the text does not name a policy; the message lists those there are.
var ErrPolicy = errors.New("kvcache: bad cache policy")

// maxSlots bounds every size in a spec: more slots than any context has.
const maxSlots = 1 << 24

// registered are the policies that Parse knows: those that work from prefill to decode.
var registered = []struct {
	name  string
	usage string
	parse func(*params) (Policy, error)
}{
	{"full", "full", func(p *params) (Policy, error) { return Full{}, p.done() }},
	{"streaming", "streaming:sink=4,recent=1020", parseStreaming},
	{"snapkv", "snapkv:topk=960,obs=64,pool=7", parseSnapKV},
	{"snapstream", "snapstream:sink=4,recent=1020,topk=1024,obs=64,pool=7", parseSnapStream},
	{"sage", "sage:sink=4,recent=64,topk=956", parseSage},
	{"h2o", "h2o:recent=512,topk=512,step=0", parseH2O},
	{"tova", "tova:size=1024", parseTOVA},
}

// Usage lists the known policies with their parameters and defaults.
func Usage() []string {
	var u []string
	for _, r := range registered {
		u = append(u, r.usage)
	}
	return u
}

// Parse reads "name" or "name:key=value,key=value". A parameter that is not given
// has the default of Usage. Every policy that evicts also takes positions=cache
// and, with it, half=1 (see Relative). The empty text is "full". Errors wrap ErrPolicy.
func Parse(spec string) (Policy, error) {
	name, rest, given := strings.Cut(spec, ":")
	if spec == "" {
		name = "full"
	}
	for _, r := range registered {
		if r.name != name {
			continue
		}
		p := &params{usage: r.usage, values: map[string]string{}}
		if given {
			p.split(rest)
		}
		policy, err := p.relative(r.parse)
		if err != nil {
			return nil, err
		}
		return policy, nil
	}
	return nil, fmt.Errorf("%w: %.60q is unknown; known are %s; and behind each that evicts ,positions=cache", ErrPolicy, name, strings.Join(Usage(), " | "))
}

// params are the key=value pairs of a spec; the first error is kept.
type params struct {
	usage  string
	values map[string]string
	err    error
}

func (p *params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: %s (write %s)", ErrPolicy, fmt.Sprintf(format, args...), p.usage)
	}
}

func (p *params) split(text string) {
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			p.fail("%.60q is not key=value", part)
			return
		}
		if _, twice := p.values[key]; twice {
			p.fail("%.60q is given twice", key)
			return
		}
		p.values[key] = value
	}
}

// size takes the whole number `key`, at least least and at most maxSlots.
func (p *params) size(key string, otherwise, least int) int {
	text, ok := p.values[key]
	delete(p.values, key)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > maxSlots {
		p.fail("%s=%.60q must be a whole number from %d to %d", key, text, least, maxSlots)
		return otherwise
	}
	return n
}

// flag takes 0 or 1.
func (p *params) flag(key string) bool {
	n := p.size(key, 0, 0)
	if n > 1 {
		p.fail("%s=%d must be 0 or 1", key, n)
	}
	return n == 1
}

// odd takes an odd width, at most 255.
func (p *params) odd(key string, otherwise int) int {
	n := p.size(key, otherwise, 1)
	if n%2 == 0 || n > 255 {
		p.fail("%s=%d must be odd and at most 255", key, n)
		return otherwise
	}
	return n
}

// done reports the first error, or the parameters that nobody took.
func (p *params) done() error {
	if len(p.values) > 0 {
		var left []string
		for k := range p.values {
			left = append(left, k)
		}
		slices.Sort(left)
		p.fail("unknown parameter %.60q", left[0])
	}
	return p.err
}
