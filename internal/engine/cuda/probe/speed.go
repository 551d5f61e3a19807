package probe

import (
	"errors"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
)

// Measured runs of each kind; the fastest counts.
const runs = 5

// readBytes is how much of the card's memory a measurement reads, more than any cache holds.
const readBytes = 512 << 20

// measure measures the card's memory, its bus and a launch.
func (k *card) measure(r *Device) error {
	n := min(readBytes, r.Free/2) &^ 0xffff
	memory, out := k.alloc(int(n)), k.alloc(256)
	defer k.free()
	if k.err != nil {
		return k.err
	}
	start, err := k.Event()
	if err != nil {
		return err
	}
	end, err := k.Event()
	if err != nil {
		return err
	}
	k.fail(k.stream.Fill(memory, 1, n/4))
	rate := func(bytes int64, f func()) float64 {
		var best time.Duration
		for range runs {
			k.fail(start.Record(k.stream))
			f()
			k.fail(end.Record(k.stream))
			d, err := end.Since(start)
			k.fail(err)
			if best == 0 || d < best {
				best = d
			}
		}
		if best <= 0 {
			return 0
		}
		return float64(bytes) / best.Seconds()
	}
	grid := cuda.Grid{X: 4 * k.Multiprocessors, Threads: 512}
	r.Read = rate(n, func() { k.launch("read_all", grid, memory, uint64(n/16), out) })
	part := k.buffer.Bytes()[:min(n, staging)]
	r.Upload = rate(int64(len(part)), func() { k.fail(k.stream.Upload(memory, part)) })
	r.Download = rate(int64(len(part)), func() { k.fail(k.stream.Download(part, memory)) })
	for range runs {
		begin := time.Now()
		k.launch("read_all", cuda.Grid{X: 1, Threads: 32}, memory, uint64(0), out)
		k.fail(k.stream.Wait())
		if d := time.Since(begin); r.Launch == 0 || d < r.Launch {
			r.Launch = d
		}
	}
	k.fail(errors.Join(start.Close(), end.Close()))
	return k.err
}
