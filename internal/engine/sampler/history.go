package sampler

import "slices"

// History counts the tokens of one sequence for the penalties and MinTokens, and holds its output
// for the bad words. The zero value is empty and ready. It is not safe for concurrent use.
type History struct {
	index   map[int32]int32 // token -> index in seen
	seen    []seenToken     // in order of first appearance
	outputs []int32         // the generated tokens
}

type seenToken struct {
	token   int32
	outputs int32 // occurrences in the output; 0: only in the prompt
}

// Add counts prompt tokens.
func (h *History) Add(prompt []int32) {
	for _, t := range prompt {
		h.place(t)
	}
}

// AddOutput counts one generated token.
func (h *History) AddOutput(token int32) {
	i := h.place(token) // before indexing: place may reallocate seen
	h.seen[i].outputs++
	h.outputs = append(h.outputs, token)
}

// Distinct returns the number of distinct tokens.
func (h *History) Distinct() int { return len(h.seen) }

// Undo removes the newest generated token. distinct is the value of Distinct before it was added.
func (h *History) Undo(token int32, distinct int) {
	i := h.index[token]
	h.seen[i].outputs--
	h.outputs = h.outputs[:len(h.outputs)-1]
	if int(i) >= distinct {
		delete(h.index, token)
		h.seen = h.seen[:distinct]
	}
}

// Outputs returns the number of generated tokens; 0 for a nil History.
func (h *History) Outputs() int {
	if h == nil {
		return 0
	}
	return len(h.outputs)
}

// endsWith reports whether the newest generated tokens are these.
func (h *History) endsWith(tokens []int32) bool {
	n := h.Outputs() - len(tokens)
	return len(tokens) == 0 || n >= 0 && slices.Equal(h.outputs[n:], tokens)
}

// UndoPrompt removes the newest token, which must be one of the prompt.
func (h *History) UndoPrompt(token int32, distinct int) {
	if int(h.index[token]) >= distinct {
		delete(h.index, token)
		h.seen = h.seen[:distinct]
	}
}

func (h *History) place(token int32) int32 {
	if i, ok := h.index[token]; ok {
		return i
	}
	if h.index == nil {
		h.index = make(map[int32]int32)
	}
	i := int32(len(h.seen))
	h.index[token] = i
	h.seen = append(h.seen, seenToken{token: token})
	return i
}
