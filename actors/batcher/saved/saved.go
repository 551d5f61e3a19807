// Package saved has the orders by which the batcher moves caches of idle sessions to files of their nodes,
// and back for the next turn. Times are in milliseconds of the batcher's clock.
package saved

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// Do is the kind of an Order.
type Do uint8

const (
	Find  Do = iota // find the sockets with a cache of the session
	Write           // write a cache to a file of its owner
	Load            // read a cache from a file of its owner
	Drop            // remove the files of the session
)

// Key identifies a session of one model in files.
type Key [32]byte

// NewKey returns the key of a session. identity stands for the model and all settings on which rows depend.
func NewKey(identity, session string) Key {
	return sha256.Sum256(fmt.Appendf(nil, "shoal session 1\x00%d %s%s", len(identity), identity, session))
}

// Cache identifies the contents of a session's cache.
type Cache struct {
	Prompt int      // tokens that prefill read
	Tokens int      // tokens in the cache
	Digest [32]byte // SHA-256 of the policy, the adapter, both numbers and the tokens
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

// Order is an order to sockets. A Done with its Number answers each Find, Write and Load.
type Order struct {
	Do     Do
	Number uint64 // of the order; 0: Drop
	Epoch  uint32
	Key    Key
	Ranks  []int  // of the sockets: those with a scratch folder, or the owner
	Seq    uint64 // Write, Load: the sequence
	Cache  Cache  // Write, Load
	Policy string // Load: spec of the policy
	// Adapter is the LoRA adapter of the request (Load); zero: none.
	Adapter lora.ID
	// Millis is the time until the end of the session (Write), or the time limit (Find).
	Millis int64
}

// Done answers an Order. Err is the error of a socket, or empty. A Find with an error may have results of
// other sockets.
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

// Phase is the state of a waiting turn.
type Phase uint8

const (
	Undecided Phase = iota
	Asked           // the sockets look for a cache
	Located         // a socket has the cache in a file
	Coming          // the socket has memory for the cache, and reads the file
	None            // the turn reads its text
)

// Turn is the progress of a turn whose session may have a cache in a file. The zero value is undecided.
type Turn struct {
	Phase  Phase
	Number uint64 // of the newest Order
	Until  int64  // time at which Asked ends without an answer
	Found  Found  // set in Located and Coming
	Since  int64  // time at which the node with the cache first lacked memory for it; 0: never
	failed bool   // a cache of the session could not be read
}

// Away reports whether the turn waits for an answer.
func (t *Turn) Away() bool { return t.Phase == Asked }

// Pending reports whether the turn may begin with a cache from a file.
func (t *Turn) Pending() bool { return t.Phase >= Asked && t.Phase <= Coming }

// Ask begins a Find. It returns false if an earlier load of the turn failed: the turn then reads its text.
func (t *Turn) Ask(number uint64, until int64) bool {
	if t.failed {
		t.Phase = None
		return false
	}
	t.Phase, t.Number, t.Until = Asked, number, until
	return true
}

// Fail resets the turn after a failed load. Later calls of Ask return false.
func (t *Turn) Fail() { *t = Turn{failed: true} }

// Restart resets the turn for its next admission.
func (t *Turn) Restart() { *t = Turn{failed: t.failed} }

// File is the progress of writing an idle cache to a file.
type File struct {
	Number  uint64 // of the Write in progress; 0: none
	Written bool
	After   int64 // no Write before this time
	Since   int64 // time since which another request waits for the memory of the cache; 0: none waits
}
