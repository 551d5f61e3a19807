// Package api is Shoal's front door: an HTTP server that speaks the OpenAI
// protocol with vLLM's extensions, and that knows nothing of sockets, layers or
// caches. Text becomes tokens here, tokens become text here; what lies between
// is an Engine.
//
// The path of one request:
//
//	router.go       route table, keys, request id, panics, access log
//	limits.go       bytes, JSON depth and members are bounded before decoding
//	params.go       typed fields; every error names its parameter
//	chat.go         messages -> template segments -> tokens
//	completions.go  prompts (text or token ids) -> tokens
//	generate.go     one Engine request per choice, merged into one queue
//	choice.go       tokens -> text: UTF-8, stop strings, logprobs (pure)
//	stream.go       one token, one SSE chunk
//	collect.go      the same deltas as one JSON body
//
// What never happens: a reader that is slow holds up the engine (tokens queue
// in generate.go, bounded by max_tokens); a client that is gone keeps its
// sequence (its context is cancelled); a stream ends without a finish_reason or
// an error; a route answers without a key when keys are set.
package api
