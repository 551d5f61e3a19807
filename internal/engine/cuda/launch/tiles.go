package launch

import (
	"github.com/shoal-llm/shoal/internal/engine/cuda"
)

// CopyRows copies Rows rows of Cols float32, From[i*LdFrom:] to To[i*LdTo:]. Either may be mapped memory
// of the host (cuda.Pinned.Device).
type CopyRows struct {
	To, From     cuda.Pointer
	LdTo, LdFrom int
	Rows, Cols   int
}

func (o CopyRows) Calls() ([]Call, error) {
	if o.Rows*o.Cols == 0 {
		return nil, nil
	}
	return []Call{{"copy_rows", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256},
		[]any{o.To, uint32(o.LdTo), o.From, uint32(o.LdFrom), uint32(o.Cols)}}}, nil
}

// PackRounded copies the columns [First, First+Cols) of rounded activations (Rows, All) to records
// of tensor.Quantize for weights that are stored with Offset added (tensor.Q4_0: 8, others: 128):
// (Rows, Cols/32) of 40 bytes. UnpackRounded copies them back.
type PackRounded struct {
	Records    cuda.Pointer
	Rounded    Rounded
	All        int
	First      int
	Offset     int
	Rows, Cols int
}

func (o PackRounded) Calls() ([]Call, error) {
	for _, n := range []int{o.All, o.First + block, o.Cols} { // First may be 0
		if err := wholeBlocks("packed rows", n); err != nil {
			return nil, err
		}
	}
	if o.Rows == 0 {
		return nil, nil
	}
	n := o.Cols / block
	return []Call{{"pack_rounded", cuda.Grid{X: ceil(n, 64), Y: o.Rows, Threads: 64},
		[]any{o.Records, o.Rounded.Bytes, o.Rounded.Scales, uint32(o.All / block), uint32(o.First / block), uint32(-o.Offset), uint32(n)}}}, nil
}

// UnpackRounded is the inverse of PackRounded; it needs no Offset.
type UnpackRounded PackRounded

func (o UnpackRounded) Calls() ([]Call, error) {
	calls, err := PackRounded(o).Calls()
	if err != nil || len(calls) == 0 {
		return nil, err
	}
	c := calls[0]
	return []Call{{"unpack_rounded", c.Grid, append([]any{o.Records}, o.Rounded.Bytes, o.Rounded.Scales, c.Args[3], c.Args[4], c.Args[6])}},
		nil
}
