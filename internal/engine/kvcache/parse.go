package kvcache

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ErrPolicy means that a text is not a policy. The message lists the known ones.
var ErrPolicy = errors.New("kvcache: bad cache policy")

// maxSlots bounds every size in a spec. It exceeds every context.
const maxSlots = 1 << 24

// registered are the methods that Parse knows.
var registered = []method{methodFull, streaming, snapKV, snapStream, sage, h2o, tova, knorm, quest, shadowKV, squeezed}

// method is a policy with open parameters.
type method struct {
	name   string
	params []param // in the order of the spec
	parts  func(values []int) Parts
}

// param is a parameter of a spec.
type param struct {
	key                string
	value, least, most int // value: the default
	odd, doubles       bool
	eights             bool     // a multiple of 8
	thousandths        bool     // written as a decimal: 50 is 0.05
	words              []string // written as one of these
}

func (p param) text(value int) string {
	if p.words != nil {
		return p.words[value]
	}
	if p.thousandths {
		return strconv.FormatFloat(float64(value)/1000, 'f', -1, 64)
	}
	return strconv.Itoa(value)
}

func (p param) kind() string {
	if p.words != nil {
		return "word"
	}
	if p.thousandths {
		return "number of at most three places"
	}
	return "whole number"
}

func (p param) read(text string) (int, error) {
	if p.words != nil {
		return slices.Index(p.words, text), nil
	}
	if !p.thousandths {
		return strconv.Atoi(text)
	}
	x, err := strconv.ParseFloat(text, 64)
	n := math.Round(x * 1000)
	if err != nil || !(math.Abs(n) < maxSlots) || math.Abs(x*1000-n) > 1e-6 {
		return 0, fmt.Errorf("%.60q is not a decimal with three places", text)
	}
	return int(n), nil
}

func size(key string, value, least int) param {
	return param{key: key, value: value, least: least, most: maxSlots}
}

func odd(key string, value int) param {
	return param{key: key, value: value, least: 1, most: 255, odd: true}
}

// share is a fraction, in thousandths.
func share(key string, value, least, most int) param {
	return param{key: key, value: value, least: least, most: most, thousandths: true}
}

func flag(key string) param { return param{key: key, most: 1} }

// compressor returns a method that consists of a compressor which reads only keys. The values are
// defaults. Generated tokens are all kept.
func compressor(name string, c Compressor, sink, recent, topK int) method {
	return method{name, []param{size("sink", sink, 0), size("recent", recent, 1), size("topk", topK, 0)}, func(v []int) Parts {
		return Parts{Sink: v[0], Recent: v[1], TopK: v[2], Compressor: c}
	}}
}

// of is the policy with these parameter values.
func (m method) of(values ...int) *Policy { return Compose(m.name, m.spec(values), m.parts(values)) }

func (m method) spec(values []int) string {
	spec, sep := m.name, ":"
	for i, p := range m.params {
		spec += sep + p.key + "=" + p.text(values[i])
		sep = ","
	}
	return spec
}

// usage is the spec with all defaults.
func (m method) usage() string {
	values := make([]int, len(m.params))
	for i, p := range m.params {
		values[i] = p.value
	}
	return m.spec(values)
}

// Usage lists the known policies with their parameters and defaults.
func Usage() []string {
	var u []string
	for _, m := range registered {
		u = append(u, m.usage())
	}
	return u
}

// Parse parses "name" or "name:key=value,key=value". Missing parameters have the defaults of Usage.
// Every policy that evicts also accepts positions=cache and, with it, half=1 (see
// Policy.AtCachePositions). The empty text is "full". Errors wrap ErrPolicy.
func Parse(spec string) (*Policy, error) {
	name, rest, given := strings.Cut(spec, ":")
	if spec == "" {
		name = "full"
	}
	at := slices.IndexFunc(registered, func(m method) bool { return m.name == name })
	if at < 0 {
		return nil, fmt.Errorf("%w: %.60q is unknown; known are %s; each that evicts also takes ,positions=cache", ErrPolicy, name, strings.Join(Usage(), " | "))
	}
	m := registered[at]
	policy, err := m.parse(rest, given)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (write %s)", ErrPolicy, err, m.usage())
	}
	return policy, nil
}

func (m method) parse(text string, given bool) (*Policy, error) {
	var pairs []string
	if given {
		pairs = strings.Split(text, ",")
	}
	texts := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%.60q is not key=value", pair)
		}
		if _, twice := texts[key]; twice {
			return nil, fmt.Errorf("%.60q is given twice", key)
		}
		texts[key] = value
	}
	take := func(p param) (int, error) {
		text, ok := texts[p.key]
		delete(texts, p.key)
		if !ok {
			return p.value, nil
		}
		n, err := p.read(text)
		switch {
		case err != nil || n < p.least || n > p.most:
			return 0, fmt.Errorf("%s=%.60q must be a %s from %s to %s", p.key, text, p.kind(), p.text(p.least), p.text(p.most))
		case p.odd && n%2 == 0:
			return 0, fmt.Errorf("%s=%d must be odd", p.key, n)
		case p.eights && n%8 != 0:
			return 0, fmt.Errorf("%s=%d must be a multiple of 8", p.key, n)
		case p.doubles && n&(n-1) != 0:
			return 0, fmt.Errorf("%s=%d must be a power of two", p.key, n)
		}
		return n, nil
	}
	positions, given := texts["positions"]
	delete(texts, "positions")
	if given && positions != "cache" && positions != "original" {
		return nil, fmt.Errorf("positions=%.60q must be cache or original", positions)
	}
	half := 0
	var err error
	if positions == "cache" {
		if half, err = take(flag("half")); err != nil {
			return nil, err
		}
	}
	values := make([]int, len(m.params))
	for i, p := range m.params {
		if values[i], err = take(p); err != nil {
			return nil, err
		}
	}
	if len(texts) > 0 {
		return nil, fmt.Errorf("unknown parameter %.60q", slices.Sorted(maps.Keys(texts))[0])
	}
	policy := m.of(values...)
	switch {
	case positions != "cache":
		return policy, nil
	case !policy.evicts():
		return nil, fmt.Errorf("%s evicts nothing: its positions in the cache are the original ones", m.name)
	}
	return policy.AtCachePositions(half == 1), nil
}
