package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/topology"
)

// Bug is a mutant of the cluster that the checker must catch, as proof that the checker can fail.
type Bug uint8

const (
	NoBug             Bug = iota
	NoFence               // epochs are not checked at all
	NoSocketFence         // sockets do not check epochs
	NoAuthorityFence      // answers of an earlier epoch count for the present one
	NoBatcherFence        // results of an earlier step count for the present one
	NoCollectiveFence     // messages of an earlier epoch are accepted
	SkipReplay            // a rebuilt sequence skips one emitted token
	IgnoreRetire          // nodes that are not needed keep their caches
	NoCompare             // the store accepts every write
	NoRecord              // a placement is sent to nodes before it is recorded
	NoVerdict             // a node that holds up the others stays
	BlameAll              // a node that does not wait counts as waiting, and as done in a load
	BlameWrong            // the waiting node is blamed instead of the late one
	NoProbe               // a fenced node is never probed
	EarlyAck              // the store of jobs acknowledges unsynced messages
	LogNoCompare          // ... and accepts every append
	ForgetsTokens         // a resumed job starts from the beginning
	GoesOn                // an attempt continues under the number of its successor
	WrongBlock            // a prompt starts with a block of another text
	AcceptsOneMore        // the first wrong draft of a row counts as drawn
	bugs
)

var bugNames = [bugs]string{"none", "no fence", "no fence at sockets", "no fence at the authority", "no fence at the batcher",
	"no fence at collectives", "replay skips a token", "retire is ignored", "the store compares nothing", "nothing is recorded",
	"who holds up the others stays", "all are blamed alike", "who waits is blamed", "a fenced node stays out",
	"the log acknowledges too early", "the log compares nothing", "an attempt loses tokens",
	"an attempt goes on after its successor began", "a prompt begins with a block of another text", "one draft more is accepted"}

// block is a block of the prefix cache, or with WrongBlock another one at the same position.
func (n *node) block(id uint64) *block {
	right := n.blocks[id]
	if n.w.opt.Bug == WrongBlock && right != nil {
		for _, other := range slices.Sorted(maps.Keys(n.blocks)) {
			if b := n.blocks[other]; other != id && b.at == right.at {
				return b
			}
		}
	}
	return right
}

// blameAll is BlameAll.
func (c *coordinator) blameAll(ranks []topology.Progress) {
	for i := range ranks {
		if c.w.opt.Bug == BlameAll && i == 0 {
			ranks[i] = topology.Progress{Done: true}
		}
	}
}

// mirrored is BlameWrong: it transposes the waits.
func (c *coordinator) mirrored(late [][]time.Duration) [][]time.Duration {
	if c.w.opt.Bug != BlameWrong {
		return late
	}
	out := make([][]time.Duration, len(late))
	for i := range late {
		for j := range late {
			var d time.Duration
			if i < len(late[j]) {
				d = late[j][i]
			}
			out[i] = append(out[i], d)
		}
	}
	return out
}

// loosen is NoBatcherFence.
func (c *coordinator) loosen(in batcher.Input) batcher.Input {
	if b := c.w.opt.Bug; b != NoFence && b != NoBatcherFence {
		return in
	}
	s := c.batcher.Snapshot()
	switch m := in.(type) {
	case batcher.StepDone:
		m.Epoch, m.Step = s.Epoch, s.Step
		return m
	case batcher.StepFailed:
		m.Epoch, m.Step = s.Epoch, s.Step
		return m
	}
	return in
}

// mutate is SkipReplay: rows that replay token i carry token i+1.
func (c *coordinator) mutate(p *plan.Plan) *plan.Plan {
	if c.w.opt.Bug != SkipReplay {
		return p
	}
	m := *p
	m.Decode, m.Chunks = slices.Clone(p.Decode), slices.Clone(p.Chunks)
	for i := range m.Decode {
		d := &m.Decode[i]
		if t := c.tickets[c.ids[d.Seq]]; t != nil {
			d.Tokens = []int32{t.skipped(d.Start, d.Tokens[0])}
		}
	}
	for i := range m.Chunks {
		ch := &m.Chunks[i]
		ch.Tokens = slices.Clone(ch.Tokens)
		if t := c.tickets[c.ids[ch.Seq]]; t != nil {
			for j := range ch.Tokens {
				ch.Tokens[j] = t.skipped(ch.Start+j, ch.Tokens[j])
			}
		}
	}
	return &m
}

// usurps is GoesOn: a write that was refused because another attempt has started is written anyway.
func (a *attempt) usurps(err error) bool {
	return a.c.w.opt.Bug == GoesOn && err != nil && jobs.Superseded(err) && a.e.state.Attempt > a.number && !a.over
}

// guess drafts for a request: the next tokens, the first ones right and then wrong ones.
func (c *coordinator) guess(id string, position int) (drafts []int32) {
	t := c.tickets[id]
	if t == nil {
		return nil
	}
	h := mix(mix(c.w.opt.Seed, uint64(position)), uint64(len(id)))
	n, right, truth := int(h%10), int(h>>8%12), t.k.truth().tokens
	for i := range n {
		at := position + i - len(t.k.spec.Prompt)
		if at >= len(truth) {
			break
		}
		token := truth[at]
		if i >= right {
			token = (token + 1) % vocab
		}
		drafts = append(drafts, token)
	}
	return drafts
}

// overlook is AcceptsOneMore.
func (c *coordinator) overlook(p *plan.Plan, d *batcher.StepDone) {
	if c.w.opt.Bug != AcceptsOneMore {
		return
	}
	for _, row := range p.Decode {
		for _, r := range d.Results {
			for i := 0; r.Seq == row.Seq && i+1 < len(row.Tokens); i++ {
				if r.Samples[i].Token != row.Tokens[i+1] {
					r.Samples[i].Token = row.Tokens[i+1]
					break
				}
			}
		}
	}
}

// skipped is the token after the one at pos, if both were emitted before.
func (t *ticket) skipped(pos int, token int32) int32 {
	if index := pos - len(t.k.spec.Prompt); index >= 0 && index+1 < t.got {
		return t.k.truth().tokens[index+1]
	}
	return token
}

func (b Bug) String() string { return bugNames[b] }
