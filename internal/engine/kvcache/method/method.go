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
	"github.com/shoal-llm/shoal/internal/engine/kvcache/budget"
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

// Named are settings with a name, as a paper has them. "method:name" stands for them. Parameters that follow
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

// of is the number for a prompt with that many tokens: the share of them, rounded down, within the bounds.
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
			return setting{}, fmt.Errorf("%s=%.60q must be a share of the prompt, above 0%% and at most 100%%, with at most three places", p.Key, text)
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
		return setting{}, fmt.Errorf("%s=%.60q must be a %s from %s to %s%s", p.Key, text, p.kind(), p.text(setting{number: p.Min}), p.text(setting{number: p.Max}), also)
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

// Beta is the parameter of a pyramid: the highest layer gets one beta-th of the mean.
var Beta = Param{Key: "beta", Value: 20, Min: 1, Max: 1000}

// Pyramid is kvcache.Parts.LayerTopK of PyramidKV.
func Pyramid(topk, beta int) func(candidates, layer, layers int) int {
	return func(candidates, layer, layers int) int { return budget.Pyramid(topk, beta, candidates, layer, layers) }
}

// Share is a fraction, in thousandths.
func Share(key string, value, least, most int) Param {
	return Param{Key: key, Value: value, Min: least, Max: most, Thousandths: true}
}

// Flag is 0 or 1.
func Flag(key string) Param { return Param{Key: key, Max: 1} }

// Of is the policy with these parameter values.
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

// Usage is the spec with all defaults.
func (m Method) Usage() string { return m.spec(m.defaults()) }

// help is Usage with the optional parameters and the named settings.
func (m Method) help() string {
	text := m.Usage()
	for _, p := range m.Params {
		if p.Optional {
			text += " [" + p.Key + "=" + strings.Join(p.Words, "|") + "]"
		}
	}
	for _, n := range m.Named {
		text += " | " + m.Name + ":" + n.Name
	}
	return text
}

// Parse parses "name", "name:key=value,key=value" or "name:named,key=value". Missing parameters have the
// defaults of Usage. Every policy that evicts also accepts positions=cache and, with it, half=1 (see
// kvcache.Policy.AtCachePositions). Every one that chooses tokens of a prompt once accepts layers=pyramid and,
// with it, beta. Errors wrap kvcache.ErrPolicy.
func Parse(known []Method, spec string) (*kvcache.Policy, error) {
	name, rest, given := strings.Cut(spec, ":")
	at := slices.IndexFunc(known, func(m Method) bool { return m.Name == name })
	if at < 0 {
		var usage []string
		for _, m := range known {
			usage = append(usage, m.help())
		}
		return nil, fmt.Errorf("%w: %.60q is unknown; known are %s; each that evicts also takes ,positions=cache, and each that chooses tokens of a prompt once ,layers=pyramid", kvcache.ErrPolicy, name, strings.Join(usage, " | "))
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
	take := func(p Param) (setting, error) {
		text, ok := texts[p.Key]
		delete(texts, p.Key)
		if !ok {
			return setting{number: p.Value}, nil
		}
		return p.read(text)
	}
	positions, given := texts["positions"]
	delete(texts, "positions")
	if given && positions != "cache" && positions != "original" {
		return nil, fmt.Errorf("positions=%.60q must be cache or original", positions)
	}
	var half setting
	var err error
	if positions == "cache" {
		if half, err = take(Flag("half")); err != nil {
			return nil, err
		}
	}
	pyramid, beta := "", setting{}
	if text, ok := texts["layers"]; ok {
		if delete(texts, "layers"); text != "pyramid" && text != "equal" {
			return nil, fmt.Errorf("layers=%.60q must be equal or pyramid", text)
		}
		if text == "pyramid" {
			if beta, err = take(Beta); err != nil {
				return nil, err
			}
			pyramid = ",layers=pyramid,beta=" + Beta.text(beta)
		}
	}
	values, shares := m.defaults(), false
	for i, p := range m.Params {
		if values[i], err = take(p); err != nil {
			return nil, err
		}
		shares = shares || values[i].share > 0
	}
	if len(texts) > 0 {
		return nil, fmt.Errorf("unknown parameter %.60q", slices.Sorted(maps.Keys(texts))[0])
	}
	// of is the policy of a prompt with that many tokens.
	of := func(prompt int) *kvcache.Policy {
		numbers := make([]int, len(values))
		for i, p := range m.Params {
			numbers[i] = p.of(values[i], prompt)
		}
		policy := m.Of(numbers...)
		if parts := policy.Parts; pyramid != "" {
			parts.LayerTopK = Pyramid(parts.TopK, beta.number)
			policy = kvcache.Compose(m.Name, policy.Spec()+pyramid, parts)
		}
		if positions == "cache" {
			policy = policy.AtCachePositions(half.number == 1)
		}
		return policy
	}
	policy := of(maxSlots)
	if positions == "cache" && !policy.Evicts() {
		return nil, fmt.Errorf("%s evicts nothing: its positions in the cache are the original ones", m.Name)
	}
	if _, uniform := policy.Eviction.(kvcache.Runner); pyramid != "" && (policy.Compressor == nil || policy.Eviction != nil && !uniform || m.Of(make([]int, len(m.Params))...).LayerTopK != nil) {
		return nil, fmt.Errorf("layers=pyramid divides the tokens that a policy chooses of a prompt: %s chooses none once, or divides them already", m.Name)
	}
	if !shares {
		return policy, nil
	}
	spec := m.spec(values) + pyramid
	if positions == "cache" {
		spec = kvcache.Compose(m.Name, spec, kvcache.Parts{}).AtCachePositions(half.number == 1).Spec()
	}
	return kvcache.SharesOf(spec, maxSlots, of), nil
}
