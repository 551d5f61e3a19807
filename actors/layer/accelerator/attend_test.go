package accelerator

import (
	"errors"
	"os"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/native"
	"github.com/shoal-llm/shoal/topology"
)

// recorded is kernels that compute nothing.
type recorded struct{ ops []launch.Operation }

func (r *recorded) Run(_ *cuda.Stream, o launch.Operation) error {
	r.ops = append(r.ops, o)
	return nil
}

// Attention of a step of many decode rows, one of which is long, stays within the memory that the plan of a card books,
// and within the limits of a grid.
func TestAttendOfManyRows(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", emulator.Build(t))
	kernels := &recorded{}
	c, err := card.Open(0, card.Options{Fail: func(err error) { panic(err) }, Kernels: kernels})
	if errors.Is(err, native.ErrUnavailable) && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err) // linked dynamically: run with CGO_ENABLED=0
	}
	if err != nil {
		t.Fatal(err)
	}
	const rows, context = 2048, 128 << 10
	d := layer.Dims{Hidden: 64, Heads: 32, KVHeads: 32, HeadDim: 8, FFN: 64, Vocab: 64}
	layout := tensor.KVLayout{Type: tensor.BF16, KDim: d.HeadDim, VDim: d.HeadDim}
	device, err := New(c, 1<<20, layout)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	before := c.Used()
	b := newBackend(device, d, rows, layout)
	defer b.Close()
	b.batch = &layer.Batch{Place: topology.Placement{Slices: make([]topology.Slice, 1)}}
	for _, n := range []int{1, 64, 65, 300, rows} {
		for _, slots := range []int{100, 3000, context} {
			kernels.ops = nil
			whole := launch.Attend{
				Cache: launch.Cache{Type: layout.Type, KVHeads: d.KVHeads, HeadDim: d.HeadDim}, Heads: d.Heads,
				Q: 1 << 40, LdQ: b.qkvWidth(), Rows: 1 << 41, N: n, Slots: slots, Out: 1 << 42, LdOut: b.queryWidth(),
				To: launch.Rounded{Bytes: 1 << 43, Scales: 1 << 44},
			}
			b.doAttend(whole)
			b.ops.Start()
			at := 0
			for _, o := range kernels.ops {
				part := o.(launch.Attend)
				if part.Q != whole.Q.Add(4*int64(at*whole.LdQ)) || part.Rows != whole.Rows.Add(int64(at)*launch.RowBytes) ||
					part.Out != whole.Out.Add(4*int64(at*whole.LdOut)) || part.To.Bytes != whole.To.Bytes.Add(int64(at*b.queryWidth())) ||
					part.To.Scales != whole.To.Scales.Add(int64(at*b.queryWidth()/tensor.BlockWidth*4)) {
					t.Errorf("%d rows, %d slots: the part from row %d on is %+v", n, slots, at, part)
				}
				calls, err := part.Calls()
				if err != nil {
					t.Fatal(err)
				}
				for _, call := range calls {
					if call.Grid.Y > 65535 {
						t.Errorf("%d rows, %d slots: kernel %s has %d thread blocks in its second dimension", n, slots, call.Kernel, call.Grid.Y)
					}
				}
				at += part.N
			}
			if at != n {
				t.Errorf("%d rows, %d slots: attention of %d", n, slots, at)
			}
			if used, booked := c.Used()-before, 2*ActivationBytes(d, rows, context); used > booked {
				t.Errorf("%d rows, %d slots: %d bytes of the card, and %d are booked", n, slots, used, booked)
			}
		}
	}
}
