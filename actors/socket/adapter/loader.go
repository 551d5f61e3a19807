// Package adapter loads LoRA adapters for a socket: it receives their files, and packs the socket's part
// of them. One goroutine does all of that, so the socket's handler never waits for a disk.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// ErrOff: the socket has no memory for adapters.
var ErrOff = errors.New("adapter: this node has no memory for LoRA adapters")

var errBusy = errors.New("adapter: this node is loading too many adapters at once")

// Loader loads adapters from a store. Its goroutine ends with Close.
type Loader struct {
	store  *lora.Store
	config *model.Config
	jobs   chan func()
	ctx    context.Context
	stop   context.CancelFunc
	ended  sync.WaitGroup
}

// maxJobs is the maximum number of waiting requests.
const maxJobs = 64

// NewLoader starts a loader of adapters of a model.
func NewLoader(store *lora.Store, config *model.Config) *Loader {
	l := &Loader{store: store, config: config, jobs: make(chan func(), maxJobs)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.ended.Go(func() {
		for {
			select {
			case job := <-l.jobs:
				job()
			case <-l.ctx.Done():
				return
			}
		}
	})
	return l
}

// Close ends the goroutine after the matrix that it is packing. Requests that it has not completed get
// no reply.
func (l *Loader) Close() {
	l.stop()
	l.ended.Wait()
}

// submit queues a job. It never waits.
func (l *Loader) submit(job func()) error {
	select {
	case l.jobs <- job:
		return nil
	default:
		return errBusy
	}
}

// Receive stores a part of an adapter's file. reply is called from another goroutine.
func (l *Loader) Receive(r *proto.AdapterRequest, reply func(*proto.AdapterReply, error)) {
	id, err := lora.IDOf(r.Id)
	if err == nil {
		err = l.submit(func() { reply(&proto.AdapterReply{}, l.store.Receive(id, r.File, r.Offset, r.Data)) })
	}
	if err != nil {
		reply(nil, err)
	}
}

// Load packs a rank's part of an adapter. done is called from another goroutine. Without an error, a
// nil adapter means that the store does not have its files. ctx cancels the load.
func (l *Loader) Load(ctx context.Context, id lora.ID, p topology.Placement, rank int, done func(*lowrank.Adapter, error)) {
	err := l.submit(func() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(l.ctx, cancel)()
		done(l.load(ctx, id, p, rank))
	})
	if err != nil {
		done(nil, err)
	}
}

func (l *Loader) load(ctx context.Context, id lora.ID, p topology.Placement, rank int) (*lowrank.Adapter, error) {
	if _, err := l.store.Complete(id); err != nil {
		return nil, err
	}
	if !l.store.Has(id) {
		return nil, nil
	}
	a, err := lora.Open(l.store.Path(id))
	if err != nil && !l.store.HasFiles(id) { // another process of this machine made room
		return nil, l.store.Remove(id)
	}
	if err != nil {
		return nil, errors.Join(err, l.store.Remove(id)) // damaged: the next request receives it again
	}
	defer a.Close()
	if a.ID != id {
		return nil, errors.Join(fmt.Errorf("adapter: the files of %v on this node are damaged: %w", id, model.ErrChanged), l.store.Remove(id))
	}
	if err := shard.CheckAdapter(l.config, a); err != nil {
		return nil, err
	}
	return shard.LoadAdapter(ctx, l.config, a, p, rank)
}
