package cluster

import (
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// The types with which a program outside this module submits requests to a [Local] cluster.
type (
	// Request is one completion: prompt token ids in, events out.
	Request = engine.Request
	// Event is one generated token, or the end of a request with its reason.
	Event = engine.Event
	// Sampling holds temperature, top-p and the other settings of one request.
	Sampling = sampler.Params
	// StepTotals are the time and work of all steps of a cluster since its start.
	StepTotals = coordinator.StepTotals
	// Tokenizer turns text into token ids and back.
	Tokenizer = tokenizer.Tokenizer
)

// NoToken is the Token of an [Event] that carries none.
const NoToken = engine.NoToken

// NewRequest returns a request for at most maxTokens tokens after prompt, with the default
// sampling and without log probabilities of the prompt.
func NewRequest(id string, prompt []int32, maxTokens int) *Request {
	return &Request{ID: id, Prompt: prompt, MaxTokens: maxTokens, Sampling: sampler.Default(), PromptLogprobs: -1}
}

// LoadTokenizer reads the tokenizer of a model folder or a .gguf file.
func LoadTokenizer(model string) (*Tokenizer, error) { return tokenizer.Load(model) }
