package generate

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
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Params are the parameters that chat and completions share.
type Params struct {
	adapter      *engine.Adapter // of Model; nil: none
	Model        string
	Stream       bool
	IncludeUsage bool // one extra chunk with the usage; null on the others
	EachUsage    bool // vLLM: continuous_usage_stats
	N            int  // sequences of a prompt
	Keep         int  // of which the best are answered (best_of); 0: all
	MaxTokens    int  // -1: not given, until fit sets the room in the context
	open         bool // as many tokens are wanted as fit: max_tokens is -1, or not given where the default is the rest of the context
	Sampling     sampler.Params
	noted        []string // parts of schemas that have no effect
	formatted    bool     // sampling.Grammar is of response_format: of text, not of calls
	ignoreEOS    bool
	stop         []string
	stopTokens   []int32
	includeStop  bool // vLLM: include_stop_str_in_output
	KeepSpecial  bool // skip_special_tokens: false
	TokenIDs     bool // return_tokens_as_token_ids
	policy       string
	priority     int
	noCache      bool   // "cache": false
	salt         string // vLLM: cache_salt
	Context      string // name of a fixed context, see contexts.go
	sessionParams
	speculate     string
	tenant        string // name of the request's key
	SpecialTokens *bool  // add_special_tokens
	truncate      int    // number of last tokens that a prompt keeps; 0: all, -1: as many as leave room for max_tokens
}

// randomSeed means that the server draws the seed, as for an absent one. vLLM, llama.cpp and Ollama do
// the same.
const randomSeed = -1

// truncate applies truncate_prompt_tokens. -1 leaves the last tokens that fit the context and the cache memory with
// max_tokens, whose default is def; -1: as many as fit.
func (s *Service) truncate(g *Request, ids []int32, def int) []int32 {
	if most := g.Params.truncate; most >= 0 {
		if most == 0 || len(ids) <= most {
			return ids
		}
		return ids[len(ids)-most:]
	}
	context, output := s.Config.MaxModelLen, g.MaxTokens
	if output < 0 {
		output = def
	}
	if output = max(output, 1); output >= context { // the answer gives way
		output = 1
	}
	ids = ids[max(0, len(ids)-max(1, context-output)):]
	e, ok := s.engine.(engine.Sizer)
	if !ok || len(ids) == 0 {
		return ids
	}
	room := e.PromptRoom(&engine.Request{Model: s.Config.Models[0], Prompt: ids, MaxTokens: output, Policy: g.policy,
		PromptLogprobs: g.PromptLogprobs})
	if room <= 0 { // the engine refuses the request
		return ids
	}
	return ids[len(ids)-room:]
}

// ParseParams reads the parameters that chat and completions share. Errors are left in f.
func (s *Service) ParseParams(f *jsonbody.Object) Params {
	c := &s.Config
	f.Fail(s.CanGenerate())
	refuse(f)
	p := Params{N: 1, MaxTokens: -1, Sampling: sampler.Params{
		Temperature: float32(c.DefaultTemperature), TopP: float32(c.DefaultTopP), TopK: c.DefaultTopK,
		MinP: float32(c.DefaultMinP), RepetitionPenalty: float32(c.DefaultRepetitionPenalty), Logprobs: -1,
	}}
	f.Text("model", &p.Model)
	f.Boolean("stream", &p.Stream)
	s.parseStreamOptions(f, &p)
	parseCounts(f, &p)
	s.parseSampling(f, &p)
	s.parseText(f, &p)
	parseEngine(f, &p)
	var user string
	f.Text("user", &user)
	f.Ignore("metadata")          // it is the client's own
	if p.Sampling.MinTokens > 0 { // held back until then
		p.Sampling.Stop = append(slices.Clone(p.stopTokens), c.EOSTokens...)
		if p.ignoreEOS {
			p.Sampling.Stop = slices.Clone(p.stopTokens)
		}
		slices.Sort(p.Sampling.Stop)
		p.Sampling.Stop = slices.Compact(p.Sampling.Stop)
	}
	return p
}

// parseCounts reads the numbers of choices and tokens.
func parseCounts(f *jsonbody.Object, p *Params) {
	var x int64
	if f.Integer("n", &x) {
		p.N = int(x)
	}
	if f.Integer("best_of", &x) && int(x) != p.N {
		switch {
		case f.Table.Has("tools"):
			f.Fail(apierr.InvalidCode("best_of", "unsupported_parameter",
				"'best_of' must equal 'n' (%d) here: /v1/completions ranks candidates.", p.N))
		case int(x) < p.N:
			f.Fail(apierr.Invalid("best_of", "'best_of' (%d) is less than 'n' (%d).", x, p.N))
		case p.Stream:
			f.Fail(apierr.Invalid("best_of", "'best_of' (%d) beyond 'n' (%d) cannot be streamed: the best is known at the end.", x, p.N))
		}
		p.Keep, p.N = p.N, int(x)
	}
	f.TokenLimit("max_tokens", &p.MaxTokens)
	f.TokenLimit("max_completion_tokens", &p.MaxTokens) // supersedes max_tokens
	if f.Integer("min_tokens", &x) {
		p.Sampling.MinTokens = int(x)
	}
	if p.MaxTokens >= 0 && p.Sampling.MinTokens > p.MaxTokens {
		f.Fail(apierr.Invalid("min_tokens", "'min_tokens' (%d) is more than 'max_tokens' (%d).", p.Sampling.MinTokens, p.MaxTokens))
	}
}

// parseSampling reads how tokens are drawn.
func (s *Service) parseSampling(f *jsonbody.Object, p *Params) {
	var x int64
	sp := &p.Sampling
	f.Number("temperature", &sp.Temperature)
	f.Number("top_p", &sp.TopP)
	f.Number("min_p", &sp.MinP)
	if f.Integer("top_k", &x) {
		sp.TopK = int(max(x, 0)) // vLLM: -1 and 0 are off
	}
	f.Number("presence_penalty", &sp.PresencePenalty)
	f.Number("frequency_penalty", &sp.FrequencyPenalty)
	f.Number("repetition_penalty", &sp.RepetitionPenalty)
	sp.Seed = rand.Uint64() >> 1
	if f.Integer("seed", &x) && x != randomSeed {
		sp.Seed = uint64(x)
	}
	sp.LogitBias = s.parseLogitBias(f)
	sp.Grammar = s.parseGrammar(f, &p.noted)
	p.formatted = sp.Grammar != nil && f.Has("response_format")
}

// parseText reads where the prompt and the output are cut, and how tokens become text.
func (s *Service) parseText(f *jsonbody.Object, p *Params) {
	var x int64
	if f.Integer("truncate_prompt_tokens", &x) {
		p.truncate = int(x)
	}
	f.Boolean("ignore_eos", &p.ignoreEOS)
	p.stop = s.parseStop(f)
	p.stopTokens = s.parseStopTokens(f)
	f.Boolean("include_stop_str_in_output", &p.includeStop)
	skip := true
	f.Boolean("skip_special_tokens", &skip)
	p.KeepSpecial = !skip
	f.Boolean("return_tokens_as_token_ids", &p.TokenIDs)
}

// parseEngine reads how the engine runs the request.
func parseEngine(f *jsonbody.Object, p *Params) {
	var x int64
	f.Text("kv_policy", &p.policy)
	use := true
	f.Boolean("cache", &use)
	p.noCache = !use
	f.Text("cache_salt", &p.salt)
	f.Text("context", &p.Context)
	p.sessionParams.parse(f)
	if f.Text("speculate", &p.speculate) && p.speculate != "" {
		if _, err := speculate.Parse(p.speculate); err != nil {
			f.Fail(apierr.Invalid("speculate", "'speculate' must be one of %s, or lookup:N, suffix:N, model:N with 1 to %d drafts a row.",
				strings.Join(speculate.Modes, ", "), speculate.MaxDraft))
		}
	}
	if f.Integer("priority", &x) {
		p.priority = int(x)
	}
	var add bool
	if f.Boolean("add_special_tokens", &add) {
		p.SpecialTokens = &add
	}
	if p.Context != "" && p.Context != AnyContext && p.SpecialTokens == nil {
		p.SpecialTokens = &add // text after a context does not begin a prompt
	}
}

func (s *Service) parseStreamOptions(f *jsonbody.Object, p *Params) {
	v := f.Get("stream_options")
	if v == nil {
		return
	}
	if !p.Stream {
		f.Fail(apierr.Invalid("stream_options", "'stream_options' is only allowed when 'stream' is true."))
		return
	}
	o := f.Object("stream_options")
	if o == nil {
		return
	}
	o.Boolean("include_usage", &p.IncludeUsage)
	o.Boolean("continuous_usage_stats", &p.EachUsage)
	p.EachUsage = p.EachUsage && p.IncludeUsage
	f.FailWithin("stream_options", o)
}

func (s *Service) parseStop(f *jsonbody.Object) []string {
	v := f.Get("stop")
	if v == nil {
		return nil
	}
	list := f.Table.Of("stop").As(jsonbody.KindList)
	longest := list.Items.MaxLen
	var stops []string
	add := func(_ int, raw json.RawMessage) *apierr.Error {
		var x string
		if jsonbody.Unmarshal(raw, &x) != nil || jsonbody.IsNull(raw) {
			return apierr.Invalid("stop", "'stop' must be a string or a list of up to %d strings.", list.MaxLen)
		}
		if len(x) > longest {
			return apierr.Invalid("stop", "a 'stop' string is longer than %d bytes.", longest)
		}
		if x != "" { // an empty string stops nothing
			stops = append(stops, x)
		}
		return nil
	}
	if v[0] != '[' {
		f.Fail(add(0, v))
	} else {
		f.Fail(jsonbody.Elements("stop", "strings", v, list.MaxLen, add))
	}
	return stops
}

func (s *Service) parseStopTokens(f *jsonbody.Object) []int32 {
	v := f.Get("stop_token_ids")
	if v == nil {
		return nil
	}
	ids, problem := jsonbody.ParseIDs(v, s.VocabSize, f.Table.Of("stop_token_ids").MaxLen)
	if problem != "" {
		f.Fail(apierr.Invalid("stop_token_ids", "'stop_token_ids' %s.", problem))
	}
	return ids
}

func (s *Service) parseLogitBias(f *jsonbody.Object) []sampler.Bias {
	v := f.Get("logit_bias")
	if v == nil {
		return nil
	}
	param := f.Table.Of("logit_bias")
	limit, of := param.MaxLen, param.Items
	if bytes.Count(v, []byte{':'}) > limit { // before a map is made of it
		f.Fail(apierr.Invalid("logit_bias", "'logit_bias' holds more than %d tokens.", limit))
		return nil
	}
	var m map[string]float64
	if jsonbody.Unmarshal(v, &m) != nil {
		f.Fail(apierr.Invalid("logit_bias", "'logit_bias' must map token ids to numbers."))
		return nil
	}
	out := make([]sampler.Bias, 0, len(m))
	for k, b := range m {
		id, err := strconv.ParseInt(k, 10, 32)
		switch {
		case err != nil || id < 0 || int(id) >= s.VocabSize:
			f.Fail(apierr.Invalid("logit_bias", "'logit_bias' names the token %q; the ids are 0 to %d.", k, s.VocabSize-1))
			return nil
		case !(b >= of.Low && b <= of.High):
			f.Fail(apierr.Invalid("logit_bias", "'logit_bias' of token %d must be between %g and %g, got %v.", id, of.Low, of.High, b))
			return nil
		}
		out = append(out, sampler.Bias{Token: int32(id), Value: float32(b)})
	}
	slices.SortFunc(out, func(a, b sampler.Bias) int { return cmp.Compare(a.Token, b.Token) })
	out = slices.CompactFunc(out, func(a, b sampler.Bias) bool { return a.Token == b.Token }) // "1" and "01"
	return out
}
