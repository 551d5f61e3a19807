package launch

import "github.com/shoal-llm/shoal/internal/engine/cuda"

// Gather copies rows of Words words: row i of To is row Rows[i] of From.
type Gather struct {
	To, From cuda.Pointer
	Rows     cuda.Pointer // (N) uint32
	N, Words int
}

func (o Gather) Calls() ([]Call, error) {
	if o.N*o.Words == 0 {
		return nil, nil
	}
	return []Call{{"gather_rows", cuda.Grid{X: ceil(o.Words, 256), Y: o.N, Threads: 256}, []any{o.To, o.From, o.Rows, uint32(o.Words)}}}, nil
}

// Weigh multiplies row i of X (Rows, Cols) by Factors[i].
type Weigh struct {
	X, Factors cuda.Pointer
	Rows, Cols int
}

func (o Weigh) Calls() ([]Call, error) {
	if o.Rows*o.Cols == 0 {
		return nil, nil
	}
	return []Call{{"weigh_rows", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256}, []any{o.X, o.Factors, uint32(o.Cols)}}}, nil
}

// JoinExperts adds to row t of Y the rows Pairs[t*PerToken:] of X, in their order. Factors multiply Y before, by
// their sigmoid. With Fresh, Y begins with the first of these rows.
type JoinExperts struct {
	Y, X     cuda.Pointer // (Rows, Cols) and (pairs, Cols), Ld apart
	Pairs    cuda.Pointer // (Rows, PerToken) uint32
	PerToken int
	Factors  cuda.Pointer // (Rows), or 0
	Fresh    bool
	Ld       int
	Rows     int
	Cols     int
}

func (o JoinExperts) Calls() ([]Call, error) {
	if o.Rows*o.Cols == 0 {
		return nil, nil
	}
	fresh := uint32(0)
	if o.Fresh {
		fresh = 1
	}
	return []Call{{"join_experts", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256},
		[]any{o.Y, o.X, o.Pairs, uint32(o.PerToken), o.Factors, fresh, uint32(o.Ld), uint32(o.Cols)}}}, nil
}
