// Package card manages the graphics card that a process computes on: its stream of work, its kernels and
// its memory.
package card

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
)

// ErrMemory means that the card has too little free memory.
var ErrMemory = errors.New("too little memory on the card")

// Margin is the memory of a card that stays free, for the driver and for other processes.
const Margin = 512 << 20

// staging is the size of the pinned buffer for copies.
const staging = 32 << 20

// Card is a card in use. Alloc, Do, Upload, Download and the methods of Blocks may be called concurrently. One
// goroutine uses a Sequence.
type Card struct {
	*cuda.Context
	Stream *cuda.Stream

	kernels  Kernels
	recorder *cuda.Stream // only Sequence puts work into it, which becomes graphs
	fail     func(error)
	used     atomic.Int64

	stopWatch func()

	mu     sync.Mutex // guards buffer
	buffer *cuda.Pinned
}

// Kernels puts operations into a stream. launch.Set implements it.
type Kernels interface {
	Run(*cuda.Stream, launch.Operation) error
}

// Options configure a card.
type Options struct {
	// Fail is called with an error of the driver during a step, or if a call of the driver does not return for
	// 120 looks. The contents of the card are lost, so Fail must end the process and not return.
	Fail func(error)
	// Slow is called, in another goroutine, with the driver function that has not returned for 10 looks; or nil.
	Slow func(function string, took time.Duration)
	// Watch is the time between two looks at the driver's calls; 0: 1 s.
	Watch time.Duration
	// Kernels replace those of the card, for tests; nil: its own.
	Kernels Kernels
}

// Open starts the driver and prepares a card, which takes about a second.
func Open(index int, o Options) (_ *Card, err error) {
	driver, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	devices, err := driver.Devices()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= len(devices) {
		return nil, fmt.Errorf("cuda:%d: the driver finds %d cards; `shoal gpu` lists them", index, len(devices))
	}
	c := &Card{fail: o.Fail, kernels: o.Kernels}
	if c.Context, err = devices[index].Use(); err != nil {
		return nil, err
	}
	c.startWatch(o)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.Stream, err = c.Context.Stream(); err != nil {
		return nil, err
	}
	if c.recorder, err = c.Context.Stream(); err != nil {
		return nil, err
	}
	if c.kernels == nil {
		if c.kernels, err = launch.Load(c.Context); err != nil {
			return nil, err
		}
	}
	c.buffer, err = c.Pin(staging)
	return c, err
}

// ID returns the name of the card in options and reports, such as cuda:0.
func (c *Card) ID() string { return fmt.Sprintf("cuda:%d", c.Index) }

// Used returns the memory that Alloc has allocated, in bytes.
func (c *Card) Used() int64 { return c.used.Load() }

// Must ends the process on an error of the driver.
func (c *Card) Must(err error) {
	if err != nil {
		err = fmt.Errorf("%s (%s): %w", c.ID(), c.Name, err)
		c.fail(err)
		panic(err) // Fail returned
	}
}

// Do puts an operation into the stream.
func (c *Card) Do(o launch.Operation) { c.do(c.Stream, o) }

func (c *Card) do(s *cuda.Stream, o launch.Operation) { c.Must(c.kernels.Run(s, o)) }

// Wait waits for all work in the stream.
func (c *Card) Wait() { c.Must(c.Stream.Wait()) }

// Alloc allocates memory of the card. Errors wrap ErrMemory and state the free and the needed memory.
func (c *Card) Alloc(n int64) (cuda.Pointer, error) {
	p, err := c.Context.Alloc(max(n, 1))
	var e *cuda.Error
	if errors.As(err, &e) && e.Code == cuda.CodeOutOfMemory {
		free, total, infoErr := c.MemoryInfo()
		return 0, errors.Join(fmt.Errorf("%s: %w: %d bytes requested, %d of %d free; this process holds %d, others and the driver %d",
			c.ID(), ErrMemory, n, free, total, c.Used(), max(0, total-free-c.Used())), infoErr)
	}
	if err == nil {
		c.used.Add(n)
	}
	return p, err
}

// Free frees memory of Alloc. It waits for the work in the stream.
func (c *Card) Free(p cuda.Pointer, n int64) {
	if p != 0 {
		c.Wait()
		c.Must(c.Context.Free(p))
		c.used.Add(-n)
	}
}

// ReadRate measures how fast a kernel reads the card's memory, in bytes per second.
func (c *Card) ReadRate() (float64, error) {
	set, ok := c.kernels.(*launch.Set)
	if !ok {
		return 0, errors.New("card: the kernels are not those of the card")
	}
	const n, vector = 1 << 30, 16
	p, err := c.Alloc(n)
	if err != nil {
		return 0, err
	}
	defer c.Free(p, n)
	start, err := c.Event()
	if err != nil {
		return 0, err
	}
	end, err := c.Event()
	if err != nil {
		return 0, err
	}
	best := time.Duration(0)
	for range 5 {
		err := errors.Join(start.Record(c.Stream),
			set.Kernel("read_all").Launch(c.Stream, cuda.Grid{X: 4 * c.Multiprocessors, Threads: 512}, p, uint64(n/vector), p), end.Record(c.Stream))
		if err != nil {
			return 0, err
		}
		took, err := end.Since(start)
		if err != nil {
			return 0, err
		}
		if best == 0 || took < best {
			best = took
		}
	}
	return float64(n) / best.Seconds(), errors.Join(start.Close(), end.Close())
}

// Upload copies host memory of any kind to the card, after the work in the stream.
func (c *Card) Upload(to cuda.Pointer, from []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(from) > 0 {
		n := copy(c.buffer.Bytes(), from)
		c.Must(c.Stream.Upload(to, c.buffer.Bytes()[:n]))
		c.Must(c.Stream.Wait())
		to, from = to.Add(int64(n)), from[n:]
	}
}

// Download copies from the card to host memory of any kind, after the work in the stream.
func (c *Card) Download(to []byte, from cuda.Pointer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(to) > 0 {
		part := c.buffer.Bytes()[:min(len(to), staging)]
		c.Must(c.Stream.Download(part, from))
		c.Must(c.Stream.Wait())
		n := copy(to, part)
		to, from = to[n:], from.Add(int64(n))
	}
}
