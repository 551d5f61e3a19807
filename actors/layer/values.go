package layer

// computesKV reports whether the layer computes the keys and values of its rows.
func (w *Weights) computesKV() bool { return !w.KVComputed && !w.Borrows }

// caches returns the number of caches of a layer: each has the heads of the common divisor.
func (d *Dims) caches() int {
	if d.units == 0 {
		return 1
	}
	return d.KVHeads / d.units
}

// values completes the values of a task's rows: it derives them from the keys, which have no norm
// and no rotation yet, and applies the value norm.
func (a *attention) values(t attendTask) {
	b, d := a.b, a.b.Dims
	ld, hd := d.qkvWidth(), d.HeadDim
	for row := t.s.First + t.first; row < t.s.First+t.first+t.n; row++ {
		k := b.QKV[row*ld+d.qCols()+t.head*hd:]
		v := k[d.kCols():][:hd]
		if a.w.VFromK {
			copy(v, k[:hd])
		}
		headNorm(v, a.w.VNorm, d.NormEps)
	}
}

// lend keeps the keys and values of a task's rows for the layers that read the same cache. They write
// them again if a policy evicts within a step (attention.decode).
func (a *attention) lend(t attendTask) {
	if !a.w.Lends || t.s.N == 1 {
		return
	}
	b, d := a.b, a.b.Dims
	ld, hd, n := d.qkvWidth(), d.HeadDim, 2*d.kCols()
	for row := t.s.First + t.first; row < t.s.First+t.first+t.n; row++ {
		for _, at := range [...]int{t.head * hd, d.kCols() + t.head*hd} {
			copy(b.lent[a.w.Lent][row*n+at:][:hd], b.QKV[row*ld+d.qCols()+at:])
		}
	}
}

// growLent allocates the rows that lend keeps.
func (b *Processor) growLent(w *Weights) {
	if w.Lends {
		for len(b.lent) <= w.Lent {
			b.lent = append(b.lent, nil)
		}
		b.lent[w.Lent] = growF(b.lent[w.Lent], b.batch.decode*2*b.Dims.kCols())
	}
}
