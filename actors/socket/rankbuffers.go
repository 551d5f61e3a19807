package socket

// rankBuffers hold what a rank sends to each other rank in an all-to-all, and what it receives.
// Their memory serves the next exchange again.
type rankBuffers struct{ send, recv [][]byte }

// reset empties what is sent, and makes room for the bytes that come from each rank.
func (b *rankBuffers) reset(ranks int, coming func(rank int) int) {
	if len(b.send) != ranks {
		b.send, b.recv = make([][]byte, ranks), make([][]byte, ranks)
	}
	for r := range ranks {
		b.send[r] = b.send[r][:0]
		n := coming(r)
		if cap(b.recv[r]) < n {
			b.recv[r] = make([]byte, n)
		}
		b.recv[r] = b.recv[r][:n]
	}
}
