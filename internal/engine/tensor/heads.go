package tensor

// headsWork is the product of many small matrices in progress; Pool.mu guards it.
type headsWork struct {
	solo []*Pool // pools of one thread, by thread number
	task func(worker, i int)

	y, x             []float32
	w                []*Weight
	ldy, sy, ldx, sx int
	n                int
}

// MatMulHeads multiplies each head's part of n tokens by the head's matrix: y[h*sy+t*ldy+r] = sum
// over k of W_h[r][k]*x[h*sx+t*ldx+k]. All matrices have one shape and type. A head is one task, so
// the threads synchronise once for all heads. The bits equal those of MatMul, head by head.
func (p *Pool) MatMulHeads(y []float32, ldy, sy int, w []*Weight, x []float32, ldx, sx, n int) {
	if n == 0 || len(w) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.heads
	for len(h.solo) < p.Threads() {
		h.solo = append(h.solo, NewPool(1))
	}
	if h.task == nil {
		h.task = h.run
	}
	h.y, h.ldy, h.sy, h.w, h.x, h.ldx, h.sx, h.n = y, ldy, sy, w, x, ldx, sx, n
	if len(w)*w[0].Rows*w[0].Cols*n < soloWork {
		for i := range w {
			h.run(0, i)
		}
	} else {
		p.dispatch(len(w), h.task)
	}
	h.y, h.w, h.x = nil, nil, nil
}

func (h *headsWork) run(worker, i int) {
	h.solo[worker].MatMul(h.y[i*h.sy:], h.ldy, h.w[i], h.x[i*h.sx:], h.ldx, h.n)
}
