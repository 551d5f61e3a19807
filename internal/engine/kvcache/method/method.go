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
	Named  []Named
}

// Named are settings with a name, as a paper has them. A spec writes "method:name". Parameters that follow
// override them.
type Named struct{ Name, Settings string }

// Param is a parameter of a spec. Value is its default.
type Param struct {
	Key             string
	Value, Min, Max int
	Odd, PowerOfTwo bool
	MultipleOf8     bool     // a multiple of 8
	Thousandths     bool     // written as a decimal: 50 is 0.05
	OfPrompt        bool     // may be a share of the prompt: 5%
	Optional        bool     // a spec leaves it out at its default
	Words           []string // written as one of these
}

// setting is the value of a parameter. A share is in thousandths of a percent of the prompt, above 0; the
// number is then unknown until there is a prompt.
type setting struct{ number, share int }

// whole is the share that is the whole prompt.
const whole = 100_000

// of returns the number for a prompt of the given length: the share of its tokens, rounded down, within the bounds.
func (p Param) of(x setting, prompt int) int {
	if x.share == 0 {
		return x.number
	}
	return max(p.Min, min(int(int64(x.share)*int64(prompt)/whole), p.Max))
}

func (p Param) text(x setting) string {
	switch {
	case x.share > 0:
		return strconv.FormatFloat(float64(x.share)/1000, 'f', -1, 64) + "%"
	case p.Words != nil:
		return p.Words[x.number]
	case p.Thousandths:
		return strconv.FormatFloat(float64(x.number)/1000, 'f', -1, 64)
	}
	return strconv.Itoa(x.number)
}

func (p Param) kind() string {
	if p.Thousandths {
		return "number of at most three places"
	}
	return "whole number"
}

// read reads the text of a value and checks it.
func (p Param) read(text string) (setting, error) {
	if share, ok := strings.CutSuffix(text, "%"); ok && p.OfPrompt {
		n, err := thousandths(share)
		if err != nil || n < 1 || n > whole {
			return setting{}, fmt.Errorf("%s=%.60q must be a share of the prompt, above 0%% and at most 100%%, with at most three places",
				p.Key, text)
		}
		return setting{share: n}, nil
	}
	if p.Words != nil {
		n := slices.Index(p.Words, text)
		if n < 0 {
			return setting{}, fmt.Errorf("%s=%.60q must be %s", p.Key, text, strings.Join(p.Words, " or "))
		}
		return setting{number: n}, nil
	}
	n, err := strconv.Atoi(text)
	if p.Thousandths {
		n, err = thousandths(text)
	}
	switch {
	case err != nil || n < p.Min || n > p.Max:
		also := ""
		if p.OfPrompt {
			also = ", or a share of the prompt such as 5%"
		}
		return setting{}, fmt.Errorf("%s=%.60q must be a %s from %s to %s%s", p.Key, text, p.kind(), p.text(setting{number: p.Min}),
			p.text(setting{number: p.Max}), also)
	case p.Odd && n%2 == 0:
		return setting{}, fmt.Errorf("%s=%d must be odd", p.Key, n)
	case p.MultipleOf8 && n%8 != 0:
		return setting{}, fmt.Errorf("%s=%d must be a multiple of 8", p.Key, n)
	case p.PowerOfTwo && n&(n-1) != 0:
		return setting{}, fmt.Errorf("%s=%d must be a power of two", p.Key, n)
	}
	return setting{number: n}, nil
}

// thousandths reads a decimal with at most three places.
func thousandths(text string) (int, error) {
	x, err := strconv.ParseFloat(text, 64)
	n := math.Round(x * 1000)
	if err != nil || !(math.Abs(n) < maxSlots) || math.Abs(x*1000-n) > 1e-6 {
		return 0, fmt.Errorf("%.60q is not a decimal with three places", text)
	}
	return int(n), nil
}

// Size is a number of tokens, or a share of the prompt.
func Size(key string, value, least int) Param {
	return Param{Key: key, Value: value, Min: least, Max: maxSlots, OfPrompt: true}
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

// Of returns the policy with these parameter values.
func (m Method) Of(values ...int) *kvcache.Policy {
	settings := make([]setting, len(values))
	for i, n := range values {
		settings[i].number = n
	}
	return kvcache.Compose(m.Name, m.spec(settings), m.Parts(values))
}

func (m Method) spec(values []setting) string {
	spec, sep := m.Name, ":"
	for i, p := range m.Params {
		if p.Optional && values[i] == (setting{number: p.Value}) {
			continue
		}
		spec += sep + p.Key + "=" + p.text(values[i])
		sep = ","
	}
	return spec
}

func (m Method) defaults() []setting {
	values := make([]setting, len(m.Params))
	for i, p := range m.Params {
		values[i].number = p.Value
	}
	return values
}

// Usage returns the spec with all defaults.
func (m Method) Usage() string { return m.spec(m.defaults()) }

// help is Usage with the optional parameters, the settings that combine with the policy, and the named settings.
func (m Method) help() string {
	text := m.Usage()
	for _, p := range m.Params {
		if p.Optional {
			text += " [" + p.Key + "=" + strings.Join(p.Words, "|") + "]"
		}
	}
	numbers := make([]int, len(m.Params))
	for i, p := range m.Params {
		numbers[i] = p.Value
	}
	text += combines(m.Of(numbers...))
	for _, n := range m.Named {
		text += " | " + m.Name + ":" + n.Name
	}
	return text
}

// Parse parses "name", "name:key=value,key=value" or "name:named,key=value". Missing parameters have the
// defaults of Usage. Some policies also take options, see combination. Errors wrap kvcache.ErrPolicy.
func Parse(known []Method, spec string) (*kvcache.Policy, error) {
	name, rest, given := strings.Cut(spec, ":")
	at := slices.IndexFunc(known, func(m Method) bool { return m.Name == name })
	if at < 0 {
		var usage []string
		for _, m := range known {
			usage = append(usage, m.help())
		}
		return nil, fmt.Errorf("%w: %.60q is unknown; known are %s", kvcache.ErrPolicy, name, strings.Join(usage, " | "))
	}
	policy, err := known[at].parse(rest, given)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (write %s)", kvcache.ErrPolicy, err, known[at].help())
	}
	return policy, nil
}

// pairs adds the settings of a text to texts. The text must not have a key twice.
func (m Method) pairs(texts map[string]string, text string) error {
	own := map[string]string{}
	for i, pair := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if at := slices.IndexFunc(m.Named, func(n Named) bool { return n.Name == pair }); !ok && i == 0 && at >= 0 {
			if err := m.pairs(texts, m.Named[at].Settings); err != nil {
				return err
			}
			continue
		}
		if !ok {
			return fmt.Errorf("%.60q is not key=value", pair)
		}
		if _, twice := own[key]; twice {
			return fmt.Errorf("%.60q is given twice", key)
		}
		own[key] = value
	}
	maps.Copy(texts, own)
	return nil
}

func (m Method) parse(text string, given bool) (*kvcache.Policy, error) {
	texts := map[string]string{}
	if given {
		if err := m.pairs(texts, text); err != nil {
			return nil, err
		}
	}
	var x combination
	if err := x.read(texts); err != nil {
		return nil, err
	}
	values, shares := m.defaults(), x.ring.share > 0 || x.recall.share > 0
	for i, p := range m.Params {
		var err error
		if values[i], err = take(texts, p); err != nil {
			return nil, err
		}
		shares = shares || values[i].share > 0
	}
	if len(texts) > 0 {
		return nil, fmt.Errorf("unknown parameter %.60q", slices.Sorted(maps.Keys(texts))[0])
	}
	// of is the policy of a prompt of the given length, before the combination.
	of := func(prompt int) *kvcache.Policy {
		numbers := make([]int, len(values))
		for i, p := range m.Params {
			numbers[i] = p.of(values[i], prompt)
		}
		return m.Of(numbers...)
	}
	if err := x.check(of(maxSlots)); err != nil {
		return nil, err
	}
	if !shares {
		return x.with(of(maxSlots), maxSlots), nil
	}
	spec := m.spec(values) + x.text(x.ring, x.recall)
	return kvcache.SharesOf(spec, maxSlots, func(prompt int) *kvcache.Policy { return x.with(of(prompt), prompt) }), nil
}

// take removes a parameter from texts and reads it.
func take(texts map[string]string, p Param) (setting, error) {
	text, ok := texts[p.Key]
	delete(texts, p.Key)
	if !ok {
		return setting{number: p.Value}, nil
	}
	return p.read(text)
}
