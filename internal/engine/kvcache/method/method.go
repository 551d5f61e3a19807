// Package method describes cache policies with open parameters, and parses their specs.
package method

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// maxSlots bounds every size in a spec. It exceeds every context.
const maxSlots = 1 << 24

// Method is a policy with open parameters.
type Method struct {
	Name   string
	Params []Param // in the order of the spec
	Parts  func(values []int) kvcache.Parts
}

// Param is a parameter of a spec. Value is its default.
type Param struct {
	Key             string
	Value, Min, Max int
	Odd, PowerOfTwo bool
	MultipleOf8     bool     // a multiple of 8
	Thousandths     bool     // written as a decimal: 50 is 0.05
	Words           []string // written as one of these
}

func (p Param) text(value int) string {
	if p.Words != nil {
		return p.Words[value]
	}
	if p.Thousandths {
		return strconv.FormatFloat(float64(value)/1000, 'f', -1, 64)
	}
	return strconv.Itoa(value)
}

func (p Param) kind() string {
	if p.Words != nil {
		return "word"
	}
	if p.Thousandths {
		return "number of at most three places"
	}
	return "whole number"
}

func (p Param) read(text string) (int, error) {
	if p.Words != nil {
		return slices.Index(p.Words, text), nil
	}
	if !p.Thousandths {
		return strconv.Atoi(text)
	}
	x, err := strconv.ParseFloat(text, 64)
	n := math.Round(x * 1000)
	if err != nil || !(math.Abs(n) < maxSlots) || math.Abs(x*1000-n) > 1e-6 {
		return 0, fmt.Errorf("%.60q is not a decimal with three places", text)
	}
	return int(n), nil
}

// Size is a number of tokens.
func Size(key string, value, least int) Param {
	return Param{Key: key, Value: value, Min: least, Max: maxSlots}
}

// Odd is an odd number.
func Odd(key string, value int) Param {
	return Param{Key: key, Value: value, Min: 1, Max: 255, Odd: true}
}

// Share is a fraction, in thousandths.
func Share(key string, value, least, most int) Param {
	return Param{Key: key, Value: value, Min: least, Max: most, Thousandths: true}
}

// Flag is 0 or 1.
func Flag(key string) Param { return Param{Key: key, Max: 1} }

// Of is the policy with these parameter values.
func (m Method) Of(values ...int) *kvcache.Policy {
	return kvcache.Compose(m.Name, m.spec(values), m.Parts(values))
}

func (m Method) spec(values []int) string {
	spec, sep := m.Name, ":"
	for i, p := range m.Params {
		spec += sep + p.Key + "=" + p.text(values[i])
		sep = ","
	}
	return spec
}

// Usage is the spec with all defaults.
func (m Method) Usage() string {
	values := make([]int, len(m.Params))
	for i, p := range m.Params {
		values[i] = p.Value
	}
	return m.spec(values)
}

// Parse parses "name" or "name:key=value,key=value". Missing parameters have the defaults of Usage.
// Every policy that evicts also accepts positions=cache and, with it, half=1 (see
// kvcache.Policy.AtCachePositions). Errors wrap kvcache.ErrPolicy.
func Parse(known []Method, spec string) (*kvcache.Policy, error) {
	name, rest, given := strings.Cut(spec, ":")
	at := slices.IndexFunc(known, func(m Method) bool { return m.Name == name })
	if at < 0 {
		var usage []string
		for _, m := range known {
			usage = append(usage, m.Usage())
		}
		return nil, fmt.Errorf("%w: %.60q is unknown; known are %s; each that evicts also takes ,positions=cache", kvcache.ErrPolicy, name, strings.Join(usage, " | "))
	}
	policy, err := known[at].parse(rest, given)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (write %s)", kvcache.ErrPolicy, err, known[at].Usage())
	}
	return policy, nil
}

func (m Method) parse(text string, given bool) (*kvcache.Policy, error) {
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
	take := func(p Param) (int, error) {
		text, ok := texts[p.Key]
		delete(texts, p.Key)
		if !ok {
			return p.Value, nil
		}
		n, err := p.read(text)
		switch {
		case err != nil || n < p.Min || n > p.Max:
			return 0, fmt.Errorf("%s=%.60q must be a %s from %s to %s", p.Key, text, p.kind(), p.text(p.Min), p.text(p.Max))
		case p.Odd && n%2 == 0:
			return 0, fmt.Errorf("%s=%d must be odd", p.Key, n)
		case p.MultipleOf8 && n%8 != 0:
			return 0, fmt.Errorf("%s=%d must be a multiple of 8", p.Key, n)
		case p.PowerOfTwo && n&(n-1) != 0:
			return 0, fmt.Errorf("%s=%d must be a power of two", p.Key, n)
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
		if half, err = take(Flag("half")); err != nil {
			return nil, err
		}
	}
	values := make([]int, len(m.Params))
	for i, p := range m.Params {
		if values[i], err = take(p); err != nil {
			return nil, err
		}
	}
	if len(texts) > 0 {
		return nil, fmt.Errorf("unknown parameter %.60q", slices.Sorted(maps.Keys(texts))[0])
	}
	policy := m.Of(values...)
	switch {
	case positions != "cache":
		return policy, nil
	case !policy.Evicts():
		return nil, fmt.Errorf("%s evicts nothing: its positions in the cache are the original ones", m.Name)
	}
	return policy.AtCachePositions(half == 1), nil
}
