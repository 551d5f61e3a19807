package probe

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
)

// card holds the parts of a card that the self-test uses: a stream, the kernels, and memory that is freed at
// the end.
type card struct {
	*cuda.Context
	stream  *cuda.Stream
	kernels *launch.Set
	buffer  *cuda.Pinned // for copies
	owned   []cuda.Pointer
	runs    int   // of a graph that is measured
	err     error // the first failure; later work is skipped
}

// staging is the size of the buffer for copies.
const staging = 64 << 20

func open(c *cuda.Context) (*card, error) {
	k := &card{Context: c, runs: runs}
	var err error
	if k.stream, err = c.Stream(); err != nil {
		return nil, err
	}
	if k.kernels, err = launch.Load(c); err != nil {
		return nil, err
	}
	k.buffer, err = c.Pin(staging)
	return k, err
}

func (k *card) fail(err error) {
	if k.err == nil {
		k.err = err
	}
}

// free frees the memory of the comparison that ended.
func (k *card) free() {
	for _, p := range k.owned {
		k.fail(k.Free(p))
	}
	k.owned = nil
}

func (k *card) alloc(bytes int) cuda.Pointer {
	p, err := k.Alloc(int64(bytes))
	if err != nil {
		k.fail(err)
		return 0
	}
	k.owned = append(k.owned, p)
	return p
}

// upload copies a slice of numbers to the card.
func (k *card) upload(numbers any) cuda.Pointer {
	b := bytesOf(numbers)
	p := k.alloc(len(b))
	if k.err == nil {
		copy(k.buffer.Bytes(), b)
		k.fail(k.stream.Upload(p, k.buffer.Bytes()[:len(b)]))
		k.fail(k.stream.Wait())
	}
	return p
}

func (k *card) download(p cuda.Pointer, bytes int) []byte {
	out := make([]byte, bytes)
	if k.err == nil {
		k.fail(k.stream.Download(k.buffer.Bytes()[:bytes], p))
		k.fail(k.stream.Wait())
		copy(out, k.buffer.Bytes())
	}
	return out
}

// run puts an operation into the stream.
func (k *card) run(o launch.Operation) {
	if k.err == nil {
		k.fail(k.kernels.Run(k.stream, o))
	}
}

// launch puts a kernel into the stream.
func (k *card) launch(name string, g cuda.Grid, args ...any) {
	if k.err != nil {
		return
	}
	f := k.kernels.Kernel(name)
	if f == nil {
		k.fail(fmt.Errorf("there is no kernel %s", name))
		return
	}
	k.fail(f.Launch(k.stream, g, args...))
}

// equal compares the card's result with that of package tensor.
func (k *card) equal(what string, p cuda.Pointer, want []byte) {
	got := k.download(p, len(want))
	if k.err != nil {
		return
	}
	if n, first := differences(got, want); n > 0 {
		k.err = fmt.Errorf("%s: %d of %d bytes differ from the CPU's, first at %d", what, n, len(want), first)
	}
}

func differences(a, b []byte) (n, first int) {
	for i := range a {
		if a[i] != b[i] {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	return n, first
}

// equalFloats compares float32 results. Where the CPU has NaN the card must have NaN; its bits are
// undefined.
func (k *card) equalFloats(what string, p cuda.Pointer, want []float32) {
	if k.err != nil {
		return
	}
	got := floatsOf(k.download(p, 4*len(want)))
	bad, first := 0, 0
	for i, w := range want {
		if !sameFloat(got[i], w) {
			if bad++; bad == 1 {
				first = i
			}
		}
	}
	if bad > 0 && k.err == nil {
		k.err = fmt.Errorf("%s: %d of %d numbers differ from the CPU's, first at %d: %g, the CPU has %g",
			what, bad, len(want), first, got[first], want[first])
	}
}

func bytesOf(numbers any) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, numbers)
	if err != nil {
		panic(err) // a slice of numbers
	}
	return b
}

// sameFloat compares bits, but of NaN.
func sameFloat(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func floatsOf(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

func normal(r *rand.Rand, n int, by float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * by
	}
	return x
}
