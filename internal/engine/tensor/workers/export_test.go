package workers

const LingerFor = lingerFor

// Contended reports whether another thread needed the CPU.
func (w *Waiter) Contended() bool { return !w.contention.until.IsZero() }
