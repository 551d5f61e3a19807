package peak

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// Probe measures the least time that some work can take: it only reads the same number of bytes, or only
// computes the same number of operations. Alternate it with the work, so that other programs slow both alike.
// They do not slow FMA, VNNI and Reads.Best alike.
type Probe struct {
	pool Pool
	buf  []byte
	at   int
}

// probePiece is the size of the piece that a thread claims at once, about as much as in a product.
const probePiece = 256 << 10
const maxPieces = 1 << 16 // maximum number of pieces measured, about a second of work; the time of more is scaled

// NewProbe maps a buffer of bytes to read from. Choose several times the last-level cache. Close
// frees it.
func NewProbe(p Pool, bytes int) (*Probe, error) {
	n := max(1, bytes/probePiece) * probePiece
	buf, err := hugemem.Map(n)
	if err != nil {
		return nil, err
	}
	p.Run(n/probePiece, func(i int) {
		b := buf[i*probePiece:][:probePiece]
		for j := 0; j < len(b); j += 64 {
			b[j] = 1
		}
	})
	return &Probe{pool: p, buf: buf}, nil
}

func (p *Probe) Close() error {
	buf := p.buf
	if p.buf = nil; buf == nil {
		return nil
	}
	return hugemem.Unmap(buf)
}

// Read measures the time to read bytes (at least one piece) on all threads together.
func (p *Probe) Read(bytes float64) time.Duration {
	held, n, from := len(p.buf)/probePiece, int(min(max(1, bytes/probePiece), maxPieces)), p.at
	p.at = (p.at + n) % held
	d := p.timed(n, func(i int) { kernel.Active.Peak.Read(&p.buf[(from+i)%held*probePiece], probePiece) })
	return scale(d, bytes/float64(n*probePiece))
}

// FMA measures the time of a number of float32 operations; a multiply-add counts as two.
func (p *Probe) FMA(flops float64) time.Duration {
	return p.compute(flops, kernel.Active.Peak.Lanes*2, kernel.Active.Peak.FMA)
}

// VNNI measures the time of a number of integer operations, see the function VNNI.
func (p *Probe) VNNI(ops float64) time.Duration {
	return p.compute(ops, kernel.Active.Peak.DotLanes*8, kernel.Active.Peak.Dot)
}

func (p *Probe) compute(ops float64, perLane int, f func(int)) time.Duration {
	piece := float64(perLane * kernel.PeakChains * kernel.PeakRounds)
	n := int(min(max(1, ops/piece), maxPieces))
	return scale(p.timed(n, func(int) { f(kernel.PeakRounds) }), ops/(float64(n)*piece))
}

func (p *Probe) timed(n int, f func(int)) time.Duration {
	start := time.Now()
	p.pool.Run(n, f)
	return time.Since(start)
}

func scale(d time.Duration, by float64) time.Duration { return time.Duration(float64(d) * by) }
