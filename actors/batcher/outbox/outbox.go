// Package outbox collects the sequences and blocks that the sockets must drop or keep.
package outbox

import "slices"

// Outbox collects items. Effects may carry a part of it at once, and that message may be lost. So the
// next plan repeats everything since the plan before.
type Outbox[T any] struct {
	Items []T
	sent  int // the number of items that effects carried already
}

// Add adds items.
func (o *Outbox[T]) Add(items ...T) { o.Items = append(o.Items, items...) }

// Unsent returns the items that no effects carried yet; from now on they count as sent.
func (o *Outbox[T]) Unsent() []T {
	if o.sent == len(o.Items) {
		return nil
	}
	items := slices.Clip(o.Items[o.sent:])
	o.sent = len(o.Items)
	return items
}

// Take empties the outbox.
func (o *Outbox[T]) Take() []T {
	items := o.Items
	*o = Outbox[T]{}
	return items
}
