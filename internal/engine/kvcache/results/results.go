// Package results stores the results of an index for a prompt: the clusters and thresholds of
// squeezed, the factors of shadowkv. The same prompt gives the same results on every socket. So after
// a restart or the loss of an owner, an index is read instead of computed.
package results

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key identifies a result by everything that it depends on.
type Key [sha256.Size]byte

// Store keeps results of any prompt. Its methods may be called concurrently.
type Store interface {
	// Recall returns the stored result of that size, or nil if there is none. It waits for a bounded time.
	Recall(of Key, size int) []byte
	// Keep stores a result in the background. read appends it to a slice, later and on the same
	// goroutine that releases caches, or returns nil if it is gone. Keep never waits; a result that
	// cannot be stored is computed again.
	Keep(of Key, size int, read func(dst []byte) []byte)
}

// Prompt is the results of one prompt under one policy. Nothing is stored for a nil Prompt.
type Prompt struct {
	Key   Key // of the prompt's tokens, the model, its adapter and the policy
	Store Store
}

// Recall returns a stored result of a head, or nil if there is none.
func (p *Prompt) Recall(kind string, layer, head, size int) []byte {
	if p == nil || size == 0 {
		return nil
	}
	return p.Store.Recall(p.key(kind, layer, head), size)
}

// Keep stores a result of a head in the background, see Store.
func (p *Prompt) Keep(kind string, layer, head, size int, read func(dst []byte) []byte) {
	if p != nil && size > 0 {
		p.Store.Keep(p.key(kind, layer, head), size, read)
	}
}

func (p *Prompt) key(kind string, layer, head int) Key {
	at := append([]byte("shoal index 1\x00"), p.Key[:]...)
	at = binary.LittleEndian.AppendUint32(at, uint32(layer))
	at = binary.LittleEndian.AppendUint32(at, uint32(head))
	return sha256.Sum256(append(at, kind...))
}
