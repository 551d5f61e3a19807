package machine

import "github.com/shoal-llm/shoal/internal/engine/plan"

// The tokens of a sequence's last step are committed by the next plan that has rows of it. A sequence that has ended has no
// further rows. If its blocks go to the prefix cache, their end is the number of tokens that count.

// lastTokens returns the number of tokens of the last step up to a number of tokens of the sequence, and where the owner
// copies the recurrent states when it commits them; 0: nowhere.
func (q *Sequence) lastTokens(end int) (accepted, copyAt int) {
	if end < q.Read || q.Staged == 0 {
		return 0, 0
	}
	accepted = min(end-q.Read, q.Staged)
	return accepted, q.copyAfter(accepted)
}

// copyAfter returns where the owner copies the recurrent states when it commits tokens of the last step; 0: nowhere.
func (q *Sequence) copyAfter(accepted int) int {
	if !q.copies {
		return 0
	}
	return plan.CopyAfter(q.Read, q.Read+accepted, q.copied)
}

// count commits the first tokens of the last step of a sequence and discards the others.
func (m *Machine) count(effects []Effect, id uint64, q *Sequence, accepted int) []Effect {
	at := q.copyAfter(accepted)
	q.Read, q.Staged = q.Read+accepted, 0
	if at > 0 {
		q.copied = at
	}
	if q.Owner == m.limits.Rank || q.Replica == m.limits.Rank {
		effects = append(effects, Effect{Do: DoCommit, Seq: id, Tokens: q.Read, Copy: at})
	}
	return effects
}

// countLast commits the tokens of an ended sequence up to the end of its blocks.
func (m *Machine) countLast(effects []Effect, id uint64, q *Sequence, end int) []Effect {
	if accepted, at := q.lastTokens(end); accepted > 0 || at > 0 {
		return m.count(effects, id, q, accepted)
	}
	return effects
}
