package kvcache

// Full keeps every token, in the slot of its position.
type Full struct{}

func (Full) Name() string                             { return "full" }
func (Full) Spec() string                             { return "full" }
func (Full) Needs() Needs                             { return Needs{} }
func (Full) Identity() bool                           { return true }
func (Full) Slots(_, tokens int) int                  { return tokens }
func (Full) Write(_ *Head, pos int) int               { return pos }
func (Full) Read(*Head, []float32, []uint64) []uint64 { return nil }

func (Full) Keep(e *Evidence) Kept {
	kept := make([]int32, e.Prompt)
	for i := range kept {
		kept[i] = int32(i)
	}
	return Kept{Positions: kept}
}
