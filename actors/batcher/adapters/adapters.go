// Package adapters decides which LoRA adapters the sockets have in memory. All sockets have the same
// ones. It is pure: it takes values and returns the changes that the sockets must make.
package adapters

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// Cache is the memory for adapters of every socket in an epoch. The least recently used adapter that no
// sequence uses makes room for another.
type Cache struct {
	limit   int64 // bytes on the socket with the least memory
	used    int64
	clock   uint64
	number  uint64 // of the newest load
	entries map[lora.ID]*entry
	failed  map[lora.ID]failure
}

type entry struct {
	bytes   int64
	ready   bool
	touched uint64
}

type failure struct {
	count int
	after int64 // no load before this time
}

// Wanted is an adapter that a request needs, with its bytes on a socket.
type Wanted struct {
	ID    lora.ID
	Bytes int64
}

// Load is an adapter that every socket must load, and the adapters that stay in its memory. All others
// leave first.
type Load struct {
	ID     lora.ID
	Keep   []lora.ID
	Number uint64 // of the decision in its epoch: loads may arrive in another order
}

const (
	// MaxFailures is the number of failed loads after which the requests of an adapter fail.
	MaxFailures = 3
	firstRetry  = 500 // milliseconds; doubles with each failure
)

// Reset begins an epoch, whose sockets have no adapters.
func (c *Cache) Reset(limit int64) {
	*c = Cache{limit: limit, entries: map[lora.ID]*entry{}, failed: map[lora.ID]failure{}}
}

// Limit returns the bytes for adapters on the socket with the least memory.
func (c *Cache) Limit() int64 { return c.limit }

// Ready reports whether the sockets have an adapter.
func (c *Cache) Ready(id lora.ID) bool {
	e := c.entries[id]
	return e != nil && e.ready
}

// Plan chooses the adapters to load for requests, in their order. Requests from the returned position
// of the list on wait, so that the adapters of earlier ones get room. The position is len(wanted) if
// all have room. inUse reports whether sequences use an adapter.
func (c *Cache) Plan(now int64, wanted []Wanted, inUse func(lora.ID) bool) (loads []Load, blocked int) {
	earlier := map[lora.ID]bool{}
	for i, w := range wanted {
		if earlier[w.ID] {
			continue
		}
		earlier[w.ID] = true
		if e := c.entries[w.ID]; e != nil {
			c.clock++
			e.touched = c.clock
			continue
		}
		if w.Bytes > c.limit || now < c.failed[w.ID].after {
			continue
		}
		if !c.makeRoom(w.Bytes, func(id lora.ID) bool { return earlier[id] || inUse(id) }) {
			return c.keep(loads), i
		}
		c.clock++
		c.entries[w.ID] = &entry{bytes: w.Bytes, touched: c.clock}
		c.used += w.Bytes
		loads = append(loads, Load{ID: w.ID})
	}
	return c.keep(loads), len(wanted)
}

// makeRoom drops adapters until there is room for bytes more, or drops none.
func (c *Cache) makeRoom(bytes int64, stays func(lora.ID) bool) bool {
	var idle []lora.ID
	free := c.limit - c.used
	for id, e := range c.entries {
		if e.ready && !stays(id) {
			idle, free = append(idle, id), free+e.bytes
		}
	}
	if free < bytes {
		return false
	}
	slices.SortFunc(idle, func(a, b lora.ID) int { return cmp.Compare(c.entries[a].touched, c.entries[b].touched) })
	for _, id := range idle {
		if c.limit-c.used >= bytes {
			break
		}
		c.drop(id)
	}
	return true
}

func (c *Cache) drop(id lora.ID) {
	c.used -= c.entries[id].bytes
	delete(c.entries, id)
}

// keep adds the adapters that stay to loads.
func (c *Cache) keep(loads []Load) []Load {
	for i := range loads {
		c.number++
		loads[i].Number = c.number
		loads[i].Keep = slices.SortedFunc(maps.Keys(c.entries), func(a, b lora.ID) int { return slices.Compare(a[:], b[:]) })
	}
	return loads
}

// Loaded processes the result of a load. It returns true if the load has failed so often that the requests
// of the adapter must fail.
func (c *Cache) Loaded(now int64, id lora.ID, ok bool) (hopeless bool) {
	e := c.entries[id]
	if e == nil || e.ready {
		return false
	}
	if ok {
		e.ready = true
		delete(c.failed, id)
		return false
	}
	c.drop(id)
	f := c.failed[id]
	f.count++
	f.after = now + firstRetry<<(f.count-1)
	c.failed[id] = f
	if f.count >= MaxFailures {
		delete(c.failed, id)
		return true
	}
	return false
}
