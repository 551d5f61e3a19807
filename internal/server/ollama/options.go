package ollama

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// ollamaNumbers are the options that are numbers: our name, and the bounds that Ollama moves a
// value into.
var ollamaNumbers = map[string]struct {
	ours   string
	lo, hi float64
	whole  bool
}{
	"temperature": {"temperature", 0, math.MaxFloat32, false}, "top_p": {"top_p", 0, 1, false}, "min_p": {"min_p", 0, 1, false},
	"top_k":            {"top_k", -1, math.MaxInt32, true},
	"presence_penalty": {"presence_penalty", -2, 2, false}, "frequency_penalty": {"frequency_penalty", -2, 2, false},
	"repeat_penalty": {"repetition_penalty", 0, 10, false},
	"seed":           {"seed", math.MinInt64, math.MaxInt64, true}, "num_predict": {"max_tokens", math.MinInt32, math.MaxInt32, true},
}

// ollamaOptions sets the "options" of a request under OpenAI's names, and returns those without
// effect.
func ollamaOptions(v json.RawMessage, into *jsonbody.Object) (ignored []string, e *apierr.Error) {
	if v == nil {
		return nil, nil
	}
	o, e := jsonbody.Parse(v, nil)
	if e != nil {
		return nil, apierr.Invalid("options", "'options' must be an object.")
	}
	if v := o.Get("stop"); v != nil {
		into.Set("stop", v, "options.stop")
	}
	for name, n := range ollamaNumbers {
		v := o.Get(name)
		if v == nil {
			continue
		}
		text, ok := inBounds(v, n.lo, n.hi, n.whole)
		if !ok {
			return nil, apierr.Invalid("options."+name, "'options.%s' must be a number.", name)
		}
		switch {
		case name == "seed" && text[0] == '-': // random
			continue
		case name == "num_predict" && (text[0] == '-' || text == "0"): // as many as fit
			text = "-1"
		case name == "top_k" && text[0] == '-', name == "repeat_penalty" && text == "0": // off
			continue
		}
		into.Set(n.ours, json.RawMessage(text), "options."+name)
	}
	for _, name := range o.Unread() {
		ignored = append(ignored, "options."+name)
	}
	slices.Sort(ignored)
	return ignored, nil
}

// inBounds returns the JSON of a number moved into bounds, and cut to a whole one.
func inBounds(v json.RawMessage, lo, hi float64, whole bool) (text string, ok bool) {
	if !jsonbody.IsNumber(v) {
		return "", false
	}
	if _, err := strconv.ParseInt(string(v), 10, 64); err == nil && lo == math.MinInt64 {
		return string(v), true // with all its digits
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // then x is infinite
		return "", false
	}
	if x = min(max(x, lo), hi); whole {
		if x >= math.MaxInt64 { // which a float64 rounds up
			return strconv.FormatInt(math.MaxInt64, 10), true
		}
		return strconv.FormatFloat(math.Trunc(x), 'f', -1, 64), true
	}
	return strconv.FormatFloat(x, 'g', -1, 64), true
}
