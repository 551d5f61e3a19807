package batcher

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// indexKey returns the key of the index of a request's prompt in files: a hash of the policy and of the
// tokens that prefill reads, after the chain of its full blocks. Zero: it is not stored.
func (c *prefixCache) indexKey(r *request) plan.Key {
	if c == nil || !c.disk || r.Policy.Index == nil || r.NoCache {
		return plan.Key{}
	}
	h := sha256.New()
	h.Write([]byte("shoal index of a prompt 1\x00" + r.Policy.Spec() + "\x00"))
	full := r.read / tensor.BlockSlots
	if full > 0 {
		key := c.keyOf(r, full-1)
		h.Write(key[:])
	} else {
		salt := sha256.Sum256([]byte(r.Salt))
		h.Write(c.root[:])
		h.Write(salt[:])
		h.Write(r.Adapter.ID.Bytes())
	}
	var rest []byte
	for _, token := range r.tokens(full*tensor.BlockSlots, r.read) {
		rest = binary.LittleEndian.AppendUint32(rest, uint32(token))
	}
	h.Write(rest)
	return plan.Key(h.Sum(nil))
}
