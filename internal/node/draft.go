package node

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// draftShare: the caches of a draft model get one part in draftShare of a node's cache memory.
const draftShare = 16

// OpenDraft opens the draft model of a checkpoint: a folder with a small model with the same
// tokenizer, "mtp" for the checkpoint's own multi-token prediction layer, or a folder with such a
// layer; "" is none. Its caches are taken from the budget.
func OpenDraft(dir string, ck *checkpoint.Checkpoint, budget *int64) (*draft.Config, error) {
	if dir == "" {
		return nil, nil
	}
	d := &draft.Config{MTP: dir == "mtp" || checkpoint.IsMTP(dir)}
	var err error
	switch {
	case dir == "mtp":
		d.Checkpoint, err = ck.OpenMTP("")
	case d.MTP:
		d.Checkpoint, err = ck.OpenMTP(dir)
	default:
		if d.Checkpoint, err = checkpoint.Open(dir); err == nil {
			if err = sameTokens(d.Checkpoint, ck); err != nil {
				err = errors.Join(err, d.Checkpoint.Close())
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", options.Name("draft"), dir, err)
	}
	d.KVBudget = *budget / draftShare
	*budget -= d.KVBudget
	return d, nil
}

// sameTokens refuses a draft model with another tokenizer: its drafts would be wrong.
func sameTokens(small, ck *checkpoint.Checkpoint) error {
	a, err := tokenizer.Load(small.Dir)
	if err != nil {
		return err
	}
	b, err := tokenizer.Load(ck.Dir)
	if err != nil {
		return err
	}
	if small.Config.Vocab > ck.Config.Vocab {
		return fmt.Errorf("it has %d tokens, the model in %s has %d: take a small model of the same family",
			small.Config.Vocab, ck.Dir, ck.Config.Vocab)
	}
	for id := range int32(min(a.VocabSize(), b.VocabSize())) {
		if x, y := a.Token(id), b.Token(id); x != y {
			return fmt.Errorf("its token %d is %q, that of the model in %s is %q: take a small model with the same tokenizer", id, x, ck.Dir, y)
		}
	}
	return nil
}

// CloseDraft closes the draft model, unless it is part of the checkpoint.
func CloseDraft(d *draft.Config, ck *checkpoint.Checkpoint) {
	if d != nil && d.Checkpoint != ck {
		d.Checkpoint.Close()
	}
}
