// Package saved has the orders by which the batcher moves caches of idle sessions to files of their nodes,
// and back for the next turn. Times are in milliseconds of the batcher's clock.
package saved

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

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

// NewKey returns the key of a session. identity names the model and all settings on which rows depend.
func NewKey(identity, session string) Key {
	return sha256.Sum256(fmt.Appendf(nil, "shoal session 1\x00%d %s%s", len(identity), identity, session))
}

// Cache identifies the contents of a session's cache.
type Cache struct {
	Prompt int      // tokens that prefill read
	Tokens int      // tokens in the cache
	Digest [32]byte // SHA-256 of the policy, the adapter, both numbers and the tokens
}

// Text has the tokens of a sequence, and everything else that its rows depend on. Its slices are shared and
// must not be changed.
type Text struct {
	Policy  string
	Adapter lora.ID // zero: none
	Prompt  []int32
	Output  []int32
}

// Cache identifies the cache of the first tokens of a text, of which prefill has read some. It hashes these tokens, so
// the batcher does not call it.
func (t *Text) Cache(prompt, tokens int) Cache {
	h := sha256.New()
	fmt.Fprintf(h, "shoal idle cache 1\x00%d %s%x %d %d\x00", len(t.Policy), t.Policy, t.Adapter.Bytes(), prompt, tokens)
	inPrompt := min(tokens, len(t.Prompt))
	var b [1 << 12]byte
	for _, list := range [...][]int32{t.Prompt[:inPrompt], t.Output[:tokens-inPrompt]} {
		for part := range slices.Chunk(list, len(b)/4) {
			for i, token := range part {
				binary.LittleEndian.PutUint32(b[4*i:], uint32(token))
			}
			h.Write(b[:4*len(part)])
		}
	}
	return Cache{Prompt: prompt, Tokens: tokens, Digest: [32]byte(h.Sum(nil))}
}

// Tokens returns the number of tokens.
func (t *Text) Tokens() int { return len(t.Prompt) + len(t.Output) }

// Beginnings returns those caches that have the first tokens of the text. It hashes, as Cache does.
func (t *Text) Beginnings(list []Found) (out []Found) {
	for _, f := range list {
		if f.Prompt > 0 && f.Tokens >= f.Prompt && f.Tokens < t.Tokens() && t.Cache(f.Prompt, f.Tokens) == f.Cache {
			out = append(out, f)
		}
	}
	return out
}

// Order is an order to sockets. A Done answers each.
type Order struct {
	Do     Do
	Number uint64
	Epoch  uint32
	Key    Key
	Ranks  []int // of the sockets: those with a disk, or the owner
	Seq    uint64
	// Cache is the one to write or to read. The sender of a Write adds the digest with Identify.
	Cache Cache
	// Text has the tokens of the cache that is written, or of the turn that looks for one. Load has no tokens.
	Text Text
	// Millis is the time until the end of the session (Write), or for the answer (Find).
	Millis int64
}

// Identify adds the digest to a Write. It hashes the tokens, so the batcher does not call it.
func (o *Order) Identify() {
	if o.Do == Write {
		o.Cache = o.Text.Cache(o.Cache.Prompt, o.Cache.Tokens)
	}
}

// Done answers an Order. Err is the reason of a failure; "": it is done.
type Done struct {
	Number uint64
	Err    string
	Found  []Found // has only caches of the beginning of the Text
	// Lacks is the size of a file for which the disk had no room; 0: Write ended otherwise.
	Lacks int64
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
	Searching       // the sockets look for a cache
	Located         // a socket has the cache in a file
	Loading         // the socket has memory for the cache, and reads the file
	None            // the turn reads its text
)

// Turn is the progress of a turn whose session may have a cache in a file. The zero value is undecided.
type Turn struct {
	Phase  Phase
	Number uint64 // of the newest Order
	Until  int64  // time at which Searching ends without an answer
	Found  Found  // set in Located and Loading
	Since  int64  // time at which the node with the cache first lacked memory for it; 0: never
	failed bool   // a cache of the session could not be read
}

// Away reports whether the turn waits for an answer.
func (t *Turn) Away() bool { return t.Phase == Searching }

// Pending reports whether the turn may begin with a cache from a file.
func (t *Turn) Pending() bool { return t.Phase >= Searching && t.Phase <= Loading }

// Search begins a Find. It returns false if an earlier load of the turn failed. The turn then reads its text.
func (t *Turn) Search(number uint64, until int64) bool {
	if t.failed {
		t.Phase = None
		return false
	}
	t.Phase, t.Number, t.Until = Searching, number, until
	return true
}

// Fail resets the turn after a failed load. Later calls of Search return false.
func (t *Turn) Fail() { *t = Turn{failed: true} }

// Restart resets the turn for its next admission.
func (t *Turn) Restart() { *t = Turn{failed: t.failed} }
