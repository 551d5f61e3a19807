// Package saved has the values with which the batcher moves caches of idle sessions to files of their nodes,
// and back for the next turn.
package saved

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// Do is what an Order asks for.
type Do uint8

const (
	Find  Do = iota // which sockets have a cache of the session
	Write           // write a cache to a file of its owner
	Load            // read a cache from a file of its owner
	Drop            // remove the files of the session
)

// Key names a session in the files of one model.
type Key [32]byte

// NewKey returns the key of a session. identity is that of everything that rows depend on, except tokens.
func NewKey(identity, session string) Key {
	return sha256.Sum256(fmt.Appendf(nil, "shoal session 1\x00%d %s%s", len(identity), identity, session))
}

// Cache identifies a cache of a session.
type Cache struct {
	Prompt int // tokens that prefill read
	Tokens int // in the cache
	Digest [32]byte
}

// NewCache identifies the cache of the first tokens of a text under a policy.
func NewCache(policy string, adapter lora.ID, prompt, tokens int, token func(pos int) int32) Cache {
	h := sha256.New()
	fmt.Fprintf(h, "shoal idle cache 1\x00%d %s%x %d %d\x00", len(policy), policy, adapter.Bytes(), prompt, tokens)
	var b [4]byte
	for pos := range tokens {
		binary.LittleEndian.PutUint32(b[:], uint32(token(pos)))
		h.Write(b[:])
	}
	return Cache{Prompt: prompt, Tokens: tokens, Digest: [32]byte(h.Sum(nil))}
}

// Order is an order to sockets. A Done answers each, except Drop.
type Order struct {
	Do     Do
	Number uint64
	Epoch  uint32
	Key    Key
	Ranks  []int // of the sockets: those with a disk, or the owner
	Seq    uint64
	Cache  Cache
	Policy string
	// Adapter is the LoRA adapter of the request; zero: none.
	Adapter lora.ID
	// Millis is the time until the end of the session (Write), or for the answer (Find).
	Millis int64
}

// Done answers an Order. Err says why Write or Load failed; "": it is done.
type Done struct {
	Number uint64
	Err    string
	Found  []Found
}

// Found is a cache that a socket has in a file.
type Found struct {
	Rank int
	Cache
}

// Phase is the state of a turn that waits.
type Phase uint8

const (
	Undecided Phase = iota
	Asked           // the sockets look for a cache
	There           // a socket has one
	Coming          // it has memory for the cache, and reads it
	None            // the turn reads the text
)

// Turn is the progress of a turn whose session may have a cache in a file. The zero value is undecided.
type Turn struct {
	Phase  Phase
	Number uint64 // of the newest Order
	Until  int64  // when Asked ends without an answer
	Found  Found  // from There on
	Since  int64  // when the node with the cache first had no memory for it; 0: it had
	failed bool   // a cache could not be read
}

// Away reports whether the turn waits for an answer.
func (t *Turn) Away() bool { return t.Phase == Asked }

// Pending reports whether the turn may begin with a cache from a file.
func (t *Turn) Pending() bool { return t.Phase >= Asked && t.Phase <= Coming }

// Ask begins a Find. It returns false if a cache could not be read before: the turn then reads its text.
func (t *Turn) Ask(number uint64, until int64) bool {
	if t.failed {
		t.Phase = None
		return false
	}
	t.Phase, t.Number, t.Until = Asked, number, until
	return true
}

// Fail ends the use of a file.
func (t *Turn) Fail() { *t = Turn{failed: true} }

// Restart resets the turn for its next admission.
func (t *Turn) Restart() { *t = Turn{failed: t.failed} }

// File is the progress of the file of an idle cache.
type File struct {
	Number  uint64 // of the order; 0: none
	Written bool
	After   int64 // no order before this time
	Since   int64 // since when memory waits for it; 0: none does
}
