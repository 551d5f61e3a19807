package jsonbody

import (
	"cmp"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Limits bound the memory and work of one request. A zero
// field takes its default.
type Limits struct {
	BodyBytes       int64 // request body; 32 MiB
	BodiesBytes     int64 // of all bodies that were read and not decoded yet; 128 MiB
	KeyBodiesBytes  int64 // the same of one key; 64 MiB
	Connections     int   // open at once; 2048, fewer where the process may not open as many files
	HeaderBytes     int   // all request headers; 64 KiB
	JSONDepth       int   // nesting; 128
	JSONMembers     int   // members of the top-level object; 256
	JSONNames       int   // members of an object and of those around it; 65,536
	Prompts         int   // prompts in one completions request; 256
	Choices         int   // prompts x n; 256
	N               int   // choices per prompt; 64
	PromptTokens    int   // per prompt; Config.MaxModelLen
	Messages        int   // chat messages; 4096
	Parts           int   // content parts of one message; 1024
	Stops           int   // stop strings; 4
	StopBytes       int   // bytes of one stop string; 1024
	StopTokens      int   // stop token ids; 128
	LogitBias       int   // entries; 4096
	BadWords        int   // strings of StopBytes; 256
	GrammarBytes    int   // of a schema or another grammar; 512 KiB
	TopLogprobs     int   // chat; 20
	Logprobs        int   // completions; 5
	PolicyBytes     int   // kv_policy; 256
	DetokenizeToken int   // ids in one /detokenize; 1<<20

	ReadHeaderTimeout time.Duration // 10 s
	ReadTimeout       time.Duration // each further ReadBytes of a body, or its end; 60 s
	ReadBytes         int           // 1 MiB: with ReadTimeout, 140 kbit/s
	WriteTimeout      time.Duration // per chunk or body: a slower reader is cut off; 30 s
	UnreadAfter       time.Duration // a stream that waits this long for its reader gives its place to others; 1 s
	IdleTimeout       time.Duration // between requests of a connection; 120 s
	RequestTimeout    time.Duration // accepted -> last token; 1 h
}

// ManyStops is the largest number of stop strings in Ollama's and Anthropic's requests, whose
// APIs state no limit.
const ManyStops = 256

// DefaultLimits returns the limits used for fields that are zero.
func DefaultLimits() Limits {
	return Limits{
		BodyBytes: 32 << 20, BodiesBytes: 128 << 20, KeyBodiesBytes: 64 << 20, Connections: 2048,
		HeaderBytes: 64 << 10, JSONDepth: 128, JSONMembers: 256, JSONNames: 1 << 16,
		Prompts: 256, Choices: 256, N: 64, Messages: 4096, Parts: 1024,
		Stops: 4, StopBytes: 1024, StopTokens: 128, LogitBias: 4096, BadWords: 256, GrammarBytes: 512 << 10, TopLogprobs: 20, Logprobs: 5,
		PolicyBytes: 256, DetokenizeToken: 1 << 20,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second, ReadBytes: 1 << 20,
		WriteTimeout: 30 * time.Second, UnreadAfter: time.Second,
		IdleTimeout: 120 * time.Second, RequestTimeout: time.Hour,
	}
}

func (l *Limits) Fill() {
	d := DefaultLimits()
	l.BodyBytes = cmp.Or(l.BodyBytes, d.BodyBytes)
	l.BodiesBytes = cmp.Or(l.BodiesBytes, d.BodiesBytes)
	l.KeyBodiesBytes = cmp.Or(l.KeyBodiesBytes, d.KeyBodiesBytes)
	l.Connections = cmp.Or(l.Connections, d.Connections)
	for _, f := range []struct {
		v *int
		d int
	}{
		{&l.HeaderBytes, d.HeaderBytes}, {&l.JSONDepth, d.JSONDepth}, {&l.JSONMembers, d.JSONMembers}, {&l.JSONNames, d.JSONNames},
		{&l.Prompts, d.Prompts}, {&l.Choices, d.Choices}, {&l.N, d.N}, {&l.Messages, d.Messages}, {&l.Parts, d.Parts},
		{&l.Stops, d.Stops}, {&l.StopBytes, d.StopBytes}, {&l.StopTokens, d.StopTokens}, {&l.LogitBias, d.LogitBias},
		{&l.BadWords, d.BadWords}, {&l.GrammarBytes, d.GrammarBytes},
		{&l.TopLogprobs, d.TopLogprobs}, {&l.Logprobs, d.Logprobs}, {&l.PolicyBytes, d.PolicyBytes},
		{&l.DetokenizeToken, d.DetokenizeToken}, {&l.ReadBytes, d.ReadBytes},
	} {
		*f.v = cmp.Or(*f.v, f.d)
	}
	l.ReadHeaderTimeout = cmp.Or(l.ReadHeaderTimeout, d.ReadHeaderTimeout)
	l.ReadTimeout = cmp.Or(l.ReadTimeout, d.ReadTimeout)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, d.WriteTimeout)
	l.UnreadAfter = cmp.Or(l.UnreadAfter, d.UnreadAfter)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, d.IdleTimeout)
	l.RequestTimeout = cmp.Or(l.RequestTimeout, d.RequestTimeout)
}

// CheckShape bounds nesting and members before a body is decoded, so that a small body cannot
// take much memory. With names it also refuses an object that has a name twice. Requests
// that were accepted before are decoded without that: earlier builds accepted them.
func (l *Limits) CheckShape(body []byte, names bool) *apierr.Error {
	shape := strictjson.Limits{Depth: l.JSONDepth, Members: l.JSONMembers}
	if names {
		shape.Names = l.JSONNames
	}
	if f := strictjson.Check(body, shape); f != nil {
		return apierr.InvalidCode(f.At, "invalid_json", "%s", f.Message)
	}
	return nil
}
