package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// params are the parameters that chat and completions share.
type params struct {
	model         string
	stream        bool
	includeUsage  bool // one extra chunk with the usage; null on the others
	eachUsage     bool // vLLM: continuous_usage_stats
	n             int  // sequences of a prompt
	keep          int  // of which the best are answered (best_of); 0: all
	maxTokens     int  // -1: not given; once fit has settled it, what there is room for
	sampling      sampler.Params
	noted         []string // parts of schemas that have no effect
	formatted     bool     // sampling.Grammar is of response_format: of text, not of calls
	ignoreEOS     bool
	stop          []string
	stopTokens    []int32
	includeStop   bool // vLLM: include_stop_str_in_output
	keepSpecial   bool // skip_special_tokens: false
	tokenIDs      bool // return_tokens_as_token_ids
	policy        string
	priority      int
	noCache       bool   // "cache": false
	salt          string // vLLM: cache_salt
	context       string // name of a fixed context, see contexts.go
	speculate     string
	tenant        string // key of who asks, set with the request
	specialTokens *bool  // add_special_tokens
	truncate      int    // a prompt keeps so many of its last tokens; 0: all, -1: what leaves the context room for max_tokens
}

// randomSeed asks for a seed that the server draws, as no seed does. vLLM, llama.cpp and
// Ollama read it so.
const randomSeed = -1

// cut applies truncate_prompt_tokens.
func (p *params) cut(ids []int32, context int) []int32 {
	most := p.truncate
	if most < 0 {
		if most = context - max(p.maxTokens, 1); most <= 0 { // the answer gives way
			most = context - 1
		}
	}
	if most <= 0 || len(ids) <= most {
		return ids
	}
	return ids[len(ids)-most:]
}

// parseParams reads what chat and completions share. Errors are left in f.
func (s *Service) parseParams(f *fields) params {
	c := &s.cfg
	refuse(f)
	p := params{n: 1, maxTokens: -1, sampling: sampler.Params{
		Temperature: float32(c.DefaultTemperature), TopP: float32(c.DefaultTopP), TopK: c.DefaultTopK,
		MinP: float32(c.DefaultMinP), RepetitionPenalty: float32(c.DefaultRepetitionPenalty), Logprobs: -1,
	}}
	f.str("model", &p.model)
	f.boolean("stream", &p.stream)
	s.parseStreamOptions(f, &p)

	var x int64
	if f.integer("n", &x) {
		p.n = int(x)
	}
	if f.integer("best_of", &x) && int(x) != p.n {
		switch {
		case f.table.Has("tools"):
			f.fail(invalidCode("best_of", "unsupported_parameter", "'best_of' must equal 'n' (%d) here: /v1/completions ranks candidates.", p.n))
		case int(x) < p.n:
			f.fail(invalid("best_of", "'best_of' (%d) is less than 'n' (%d).", x, p.n))
		case p.stream:
			f.fail(invalid("best_of", "'best_of' (%d) beyond 'n' (%d) cannot be streamed: the best is known at the end.", x, p.n))
		}
		p.keep, p.n = p.n, int(x)
	}
	f.most("max_tokens", &p.maxTokens)
	f.most("max_completion_tokens", &p.maxTokens) // supersedes max_tokens
	if f.integer("min_tokens", &x) {
		p.sampling.MinTokens = int(x)
	}
	if p.maxTokens >= 0 && p.sampling.MinTokens > p.maxTokens {
		f.fail(invalid("min_tokens", "'min_tokens' (%d) is more than 'max_tokens' (%d).", p.sampling.MinTokens, p.maxTokens))
	}

	sp := &p.sampling
	f.number("temperature", &sp.Temperature)
	f.number("top_p", &sp.TopP)
	f.number("min_p", &sp.MinP)
	if f.integer("top_k", &x) {
		sp.TopK = int(max(x, 0)) // vLLM: -1 and 0 are off
	}
	f.number("presence_penalty", &sp.PresencePenalty)
	f.number("frequency_penalty", &sp.FrequencyPenalty)
	f.number("repetition_penalty", &sp.RepetitionPenalty)
	sp.Seed = rand.Uint64() >> 1
	if f.integer("seed", &x) && x != randomSeed {
		sp.Seed = uint64(x)
	}
	sp.LogitBias = s.parseLogitBias(f)
	sp.Grammar = s.parseGrammar(f, &p.noted)
	p.formatted = sp.Grammar != nil && f.has("response_format")

	if f.integer("truncate_prompt_tokens", &x) {
		p.truncate = int(x)
	}
	f.boolean("ignore_eos", &p.ignoreEOS)
	p.stop = s.parseStop(f)
	p.stopTokens = s.parseStopTokens(f)
	f.boolean("include_stop_str_in_output", &p.includeStop)
	skip := true
	f.boolean("skip_special_tokens", &skip)
	p.keepSpecial = !skip
	f.boolean("return_tokens_as_token_ids", &p.tokenIDs)
	f.str("kv_policy", &p.policy)
	use := true
	f.boolean("cache", &use)
	p.noCache = !use
	f.str("cache_salt", &p.salt)
	f.str("context", &p.context)
	if f.str("speculate", &p.speculate) && p.speculate != "" {
		if _, err := speculate.Parse(p.speculate); err != nil {
			f.fail(invalid("speculate", "'speculate' must be one of %s, or lookup:N, suffix:N, model:N with 1 to %d drafts a row.", strings.Join(speculate.Modes, ", "), speculate.Most))
		}
	}
	if f.integer("priority", &x) {
		p.priority = int(x)
	}
	var add bool
	if f.boolean("add_special_tokens", &add) {
		p.specialTokens = &add
	}
	if p.context != "" && p.context != anyContext && p.specialTokens == nil {
		p.specialTokens = &add // what follows a context is no beginning
	}
	var user string
	f.str("user", &user)
	f.ignore("metadata")  // it is the client's own
	if sp.MinTokens > 0 { // held back until then
		sp.Stop = append(slices.Clone(p.stopTokens), c.EOSTokens...)
		if p.ignoreEOS {
			sp.Stop = slices.Clone(p.stopTokens)
		}
		slices.Sort(sp.Stop)
		sp.Stop = slices.Compact(sp.Stop)
	}
	return p
}

func (s *Service) parseStreamOptions(f *fields, p *params) {
	v := f.get("stream_options")
	if v == nil {
		return
	}
	if !p.stream {
		f.fail(invalid("stream_options", "'stream_options' is only allowed when 'stream' is true."))
		return
	}
	o := f.object("stream_options")
	if o == nil {
		return
	}
	o.boolean("include_usage", &p.includeUsage)
	o.boolean("continuous_usage_stats", &p.eachUsage)
	p.eachUsage = p.eachUsage && p.includeUsage
	f.failWithin("stream_options", o)
}

func (s *Service) parseStop(f *fields) []string {
	v := f.get("stop")
	if v == nil {
		return nil
	}
	list := f.table.of("stop").as(KindList)
	longest := list.Items.Most
	var stops []string
	add := func(_ int, raw json.RawMessage) *apiError {
		var x string
		if unmarshal(raw, &x) != nil || isNull(raw) {
			return invalid("stop", "'stop' must be a string or a list of up to %d strings.", list.Most)
		}
		if len(x) > longest {
			return invalid("stop", "a 'stop' string is longer than %d bytes.", longest)
		}
		if x != "" { // an empty string stops nothing
			stops = append(stops, x)
		}
		return nil
	}
	if v[0] != '[' {
		f.fail(add(0, v))
	} else {
		f.fail(elements("stop", "strings", v, list.Most, add))
	}
	return stops
}

func (s *Service) parseStopTokens(f *fields) []int32 {
	v := f.get("stop_token_ids")
	if v == nil {
		return nil
	}
	ids, problem := parseIDs(v, s.vocab, f.table.of("stop_token_ids").Most)
	if problem != "" {
		f.fail(invalid("stop_token_ids", "'stop_token_ids' %s.", problem))
	}
	return ids
}

func (s *Service) parseLogitBias(f *fields) []sampler.Bias {
	v := f.get("logit_bias")
	if v == nil {
		return nil
	}
	param := f.table.of("logit_bias")
	limit, of := param.Most, param.Items
	if bytes.Count(v, []byte{':'}) > limit { // before a map is made of it
		f.fail(invalid("logit_bias", "'logit_bias' holds more than %d tokens.", limit))
		return nil
	}
	var m map[string]float64
	if unmarshal(v, &m) != nil {
		f.fail(invalid("logit_bias", "'logit_bias' must map token ids to numbers."))
		return nil
	}
	out := make([]sampler.Bias, 0, len(m))
	for k, b := range m {
		id, err := strconv.ParseInt(k, 10, 32)
		switch {
		case err != nil || id < 0 || int(id) >= s.vocab:
			f.fail(invalid("logit_bias", "'logit_bias' names the token %q; the ids are 0 to %d.", k, s.vocab-1))
			return nil
		case !(b >= of.Low && b <= of.High):
			f.fail(invalid("logit_bias", "'logit_bias' of token %d must be between %g and %g, got %v.", id, of.Low, of.High, b))
			return nil
		}
		out = append(out, sampler.Bias{Token: int32(id), Value: float32(b)})
	}
	slices.SortFunc(out, func(a, b sampler.Bias) int { return cmp.Compare(a.Token, b.Token) })
	out = slices.CompactFunc(out, func(a, b sampler.Bias) bool { return a.Token == b.Token }) // "1" and "01"
	return out
}
