package caches

import (
	"crypto/sha256"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// indexes stores results of prompts' indexes in the files of the prefix cache: it is a results.Store.
// One goroutine writes and one reads. The executor waits for a read, because a step needs the result.
type indexes struct {
	files     *files
	reads     chan func()
	writes    chan keptResult
	restUntil atomic.Pointer[time.Time] // no result is read before this time
	computed  atomic.Uint64
	read      atomic.Uint64
}

// keptResult is a result that the disk may store.
type keptResult struct {
	key  tier.Key
	size int
	read func(dst []byte) []byte
}

const (
	waitingResults = 512
	// recallTimeout bounds the wait of a step for one result. After a timeout nothing is read for
	// recallRest.
	recallTimeout = 2 * time.Second
	recallRest    = 30 * time.Second
)

// resultHead is the only head of a file with a result. A result has its own file.
var resultHead = tensor.Span{Lo: 0, Hi: 1}

func resultForm(size int) tier.Form {
	return tier.Form{Hash: sha256.Sum256([]byte("result of an index, version 1")), HeadBytes: size}
}

func newIndexes(f *files) *indexes {
	x := &indexes{files: f, reads: make(chan func()), writes: make(chan keptResult, waitingResults)}
	f.goroutines.Go(func() { f.runAll(x.reads) })
	f.goroutines.Go(x.write)
	return x
}

// Recall implements results.Store.
func (x *indexes) Recall(of results.Key, size int) []byte {
	key := tier.Key(of)
	if rest := x.restUntil.Load(); rest != nil && time.Now().Before(*rest) || x.files.store.Has([]tier.Key{key}, 0, resultHead) == 0 {
		return nil
	}
	timeout := time.NewTimer(recallTimeout)
	defer timeout.Stop()
	found := make(chan []byte, 1)
	read := func() {
		rows := make([]byte, size)
		if !x.files.store.Read(key, 0, resultHead, resultForm(size), rows) {
			rows = nil
		}
		found <- rows
	}
	select {
	case x.reads <- read:
		select {
		case rows := <-found:
			if rows != nil {
				x.read.Add(1)
			}
			return rows
		case <-timeout.C:
		}
	case <-timeout.C:
	case <-x.files.quit:
		return nil
	}
	rest := time.Now().Add(recallRest)
	x.restUntil.Store(&rest)
	return nil
}

// Keep implements results.Store.
func (x *indexes) Keep(of results.Key, size int, read func(dst []byte) []byte) {
	x.computed.Add(1)
	select {
	case x.writes <- keptResult{key: tier.Key(of), size: size, read: read}:
	default:
		x.files.store.Drop()
	}
}

// write is the writer goroutine. The executor copies one result at a time for it.
func (x *indexes) write() {
	for {
		var k keptResult
		select {
		case <-x.files.quit:
			return
		case k = <-x.writes:
		}
		var rows []byte
		copied := x.files.onExecutor(func() error {
			if rows = k.read(make([]byte, 0, k.size)); len(rows) != k.size {
				return errEvicted
			}
			return nil
		})
		if copied == nil {
			x.files.store.Write(k.key, tier.Key{}, 0, resultHead, resultForm(k.size), rows)
		}
	}
}

// resultsOf returns the stored results of a sequence's prompt; nil: nothing is stored.
func (f *files) resultsOf(o *plan.Open) *results.Prompt {
	if f == nil || o.IndexKey == (plan.Key{}) {
		return nil
	}
	return &results.Prompt{Key: results.Key(o.IndexKey), Store: f.indexes}
}
