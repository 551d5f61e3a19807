// Package prefillgroup follows a prompt that the prefill group reads for a request of the decode group
// (docs/decisions/groups.md). The batcher of the decode group has the request. It requests the read by a
// number, gets a message when the cache is complete, books memory for it, and orders its owner to take
// the rows.
package prefillgroup

import (
	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// Phase is the state of a prompt, in the batcher of the decode group.
type Phase uint8

const (
	Undecided Phase = iota
	Local           // this group reads the prompt
	Requested       // the prefill group reads it
	Ready           // the prefill group has its cache
	Receiving       // this group has memory for the cache, and its rows are being sent
)

// maxFailures is the number of failed reads or transfers after which the decode group reads a prompt.
const maxFailures = 2

// Prompt is the progress of one prompt. The zero value is undecided.
type Prompt struct {
	Phase    Phase
	Number   uint64 // of the newest read
	Done     Done   // from Ready on
	failures int

	// Scores are the log-probabilities of the prompt so far, in the batcher of the prefill group.
	Scores []report.PromptLogprob
}

// Done is the end of a read. The cache rows and the sample follow from the last token that prefill
// reads.
type Done struct {
	Number uint64 // of the read
	Err    string // why there is no cache; "": there is one, or Pooled
	Fault  bool   // with Err: the read may have caused it

	Epoch  uint32 // in which the cache is on its owner
	Rank   int    // of the owner, in the prefill group
	Seq    uint64 // of the cache there
	Tokens int    // in the cache
	Sample *sampler.Result
	Scores []report.PromptLogprob
	Pooled []float32 // the vector of a prompt, instead of a cache

	Warm   int   // prompt tokens that the prefix cache had
	Millis int64 // from the admission to the end
}

// Take is a cache to be taken: from sequence Source of a rank of the prefill group, as sequence Seq of
// rank Owner.
type Take struct {
	Number uint64 // of the read
	Epoch  uint32
	Seq    uint64
	Owner  int
	Tokens int
	Policy string
	// Adapter is the LoRA adapter of the request; zero: none.
	Adapter lora.ID
	Rank    int
	Source  uint64
}

// TakeDone is the end of a Take. Err is "" if the owner has the cache.
type TakeDone struct {
	Number uint64
	Err    string
}

// Away reports whether the request waits for the prefill group.
func (p *Prompt) Away() bool { return p.Phase == Requested }

// Pending reports whether the prefill group still has work or memory for the prompt.
func (p *Prompt) Pending() bool { return p.Phase >= Requested }

// Decide chooses the group that reads a prompt: the prefill group if more than most tokens are unread
// and it has not failed too often. number is that of the read.
func (p *Prompt) Decide(unread, most int, number uint64) (away bool) {
	if unread <= most || p.failures >= maxFailures {
		p.Phase = Local
		return false
	}
	p.Phase, p.Number = Requested, number
	return true
}

// Finished records the end of a read. It reports whether the cache can be taken.
func (p *Prompt) Finished(d Done) bool {
	if p.Phase != Requested || p.Number != d.Number {
		return false
	}
	if d.Err != "" {
		p.Fail(d.Fault)
		return false
	}
	p.Phase, p.Done = Ready, d
	return true
}

// Fail ends a read without a cache. The next admission decides again.
func (p *Prompt) Fail(fault bool) {
	p.Restart()
	if fault {
		p.failures++
	}
}

// Restart resets the prompt for the next admission.
func (p *Prompt) Restart() { *p = Prompt{failures: p.failures, Scores: p.Scores} }
