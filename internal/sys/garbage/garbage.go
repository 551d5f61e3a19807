// Package garbage bounds the garbage in the Go heap of this process between two collections.
package garbage

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	most  = 400 // percent; the target of a small heap
	least = 10  // percent
)

// Limit lets the garbage grow to four times the live heap, and to a number of bytes at most, before it is
// collected. Above ten times these bytes of live heap, the bound is a tenth of it. The live heap is that of the last
// collection: the target follows each collection. stop ends that and restores the target that the process had. A
// process has one limit at a time.
func Limit(bytes int64) (stop func()) {
	l := &limit{bytes: bytes}
	before := debug.SetGCPercent(most)
	l.percent = most
	runtime.SetFinalizer(&collected{of: l}, (*collected).again)
	return func() {
		if !l.stopped.Swap(true) {
			debug.SetGCPercent(before)
		}
	}
}

type limit struct {
	bytes   int64
	percent int // of the present target
	stopped atomic.Bool
}

// collected has no reference: each collection runs its finalizer.
type collected struct{ of *limit }

// again sets the target, and waits for the next collection.
func (c *collected) again() {
	l := c.of
	if l.stopped.Load() {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() == metrics.KindUint64 {
		if p := percent(live[0].Value.Uint64(), l.bytes); differs(p, l.percent) {
			l.percent = p
			debug.SetGCPercent(p)
		}
	}
	runtime.SetFinalizer(c, (*collected).again)
}

// percent returns the target of a live heap for at most this number of bytes of garbage.
func percent(live uint64, bytes int64) int {
	p := 100 * float64(bytes) / math.Max(1, float64(live))
	return int(min(max(p, least), most))
}

// differs reports whether a new target is worth stopping the goroutines for.
func differs(p, old int) bool { return p < old || p > old+old/8 }
