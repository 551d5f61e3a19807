package batcher

import "slices"

// outbox collects what the sockets must drop or keep. Effects may carry a part of it at once,
// and that message may be lost. So the next plan repeats everything since the plan before.
type outbox[T any] struct {
	items []T
	sent  int // the number of items that effects carried already
}

func (o *outbox[T]) add(items ...T) { o.items = append(o.items, items...) }

// unsent returns the items that no effects carried yet; from now on they count as sent.
func (o *outbox[T]) unsent() []T {
	if o.sent == len(o.items) {
		return nil
	}
	items := slices.Clip(o.items[o.sent:])
	o.sent = len(o.items)
	return items
}

// take empties the outbox.
func (o *outbox[T]) take() []T {
	items := o.items
	*o = outbox[T]{}
	return items
}
