package engine

// Sizer is implemented by an engine whose memory bounds prompts.
type Sizer interface {
	// PromptRoom returns how many of the last tokens of a request's prompt fit the cache memory, together with
	// MaxTokens of output; all of them if that is not known. It must not block on a node.
	PromptRoom(r *Request) int
}
