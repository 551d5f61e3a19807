// Package textkeys names texts for the prefix cache and its files: by a chain of hashes over their blocks,
// which begins with the model, the API key and the adapter.
package textkeys

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Root begins the chains of a model.
type Root plan.Key

// NewRoot returns the root of a model with an identity: its weights, types and arithmetic.
func NewRoot(identity string) Root { return sha256.Sum256([]byte("shoal prefix 1\x00" + identity)) }

// Text is a text whose blocks have keys.
type Text struct {
	Salt    string // separates requests that may not share blocks
	Adapter []byte // ID of its LoRA adapter; empty: none
	Token   func(pos int) int32
}

// Block returns the key of the block after the blocks with the given keys. The text must have all
// tokens of the block.
func (r Root) Block(keys []plan.Key, t Text) plan.Key {
	h := sha256.New()
	h.Write(r.before(keys, t))
	h.Write(tokens(t, len(keys)*tensor.BlockSlots, (len(keys)+1)*tensor.BlockSlots))
	return plan.Key(h.Sum(nil))
}

// Index returns the key of a policy's index of the first n tokens. keys are those of all full blocks
// among them.
func (r Root) Index(keys []plan.Key, t Text, n int, policy string) plan.Key {
	h := sha256.New()
	h.Write([]byte("shoal index of a prompt 1\x00" + policy + "\x00"))
	h.Write(r.before(keys, t))
	h.Write(tokens(t, len(keys)*tensor.BlockSlots, n))
	return plan.Key(h.Sum(nil))
}

// before returns the bytes that a key covers before its own tokens.
func (r Root) before(keys []plan.Key, t Text) []byte {
	if n := len(keys); n > 0 {
		return keys[n-1][:]
	}
	salt := sha256.Sum256([]byte(t.Salt))
	return append(append(r[:], salt[:]...), t.Adapter...)
}

func tokens(t Text, from, to int) []byte {
	b := make([]byte, 0, 4*max(0, to-from))
	for pos := from; pos < to; pos++ {
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Token(pos)))
	}
	return b
}
