package step

// rankBuffers are the send and receive buffers for each other rank in an all-to-all. Their memory is
// reused by the next exchange.
type rankBuffers struct{ send, recv [][]byte }

// reset empties the send buffers and resizes the receive buffers to the given number of bytes.
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
