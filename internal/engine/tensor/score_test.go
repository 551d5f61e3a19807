package tensor

import "testing"

// TestScoreWithoutKernel: attention that no kernel computes does not pass for another.
func TestScoreWithoutKernel(t *testing.T) {
	for _, s := range []Score{{Scale: 1, Cap: 50}, {Scale: 1, HasSink: true}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was computed", s)
				}
			}()
			l := KVLayout{Type: F32, KDim: 8, VDim: 8}
			Attend(make([]float32, 8), make([]float32, 8), 1, s, l, [][]byte{make([]byte, l.BlockBytes())}, 1, nil, new(AttnScratch))
		}()
	}
}
