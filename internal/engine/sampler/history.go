package sampler

import "slices"

// History counts the tokens of one sequence for the penalties and MinTokens, and has its
// output for the bad words.
// The zero value is empty and ready. It is not safe for concurrent use.
type History struct {
	index   map[int32]int32 // token -> place in seen
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
	i := h.place(token) // first: it may move seen
	h.seen[i].outputs++
	h.outputs = append(h.outputs, token)
}

// Distinct is the number of different tokens.
func (h *History) Distinct() int { return len(h.seen) }

// Undo takes the newest generated token back; distinct is what Distinct was before it.
func (h *History) Undo(token int32, distinct int) {
	i := h.index[token]
	h.seen[i].outputs--
	h.outputs = h.outputs[:len(h.outputs)-1]
	if int(i) >= distinct {
		delete(h.index, token)
		h.seen = h.seen[:distinct]
	}
}

// Outputs is the number of generated tokens. A nil History has none.
func (h *History) Outputs() int {
	if h == nil {
		return 0
	}
	return len(h.outputs)
}

// endsWith reports that the newest generated tokens are these.
func (h *History) endsWith(tokens []int32) bool {
	n := h.Outputs() - len(tokens)
	return len(tokens) == 0 || n >= 0 && slices.Equal(h.outputs[n:], tokens)
}

// UndoPrompt takes the newest token back, one of the prompt.
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
