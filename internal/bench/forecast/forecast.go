package forecast

// Cluster is a number of equal nodes.
type Cluster struct {
	Nodes   int
	Machine Machine
	Link    Link
	Seed    uint64
}

// Decode returns the time of a step that decodes one token for each of batch sequences, whose caches
// have this many slots.
func (w *Work) Decode(c Cluster, batch, slots int) Time {
	return w.step(load{rows: batch, context: slots, ranks: c.Nodes}, c.Machine, c.Link, c.Seed)
}

// Prompt returns the time until the first token of a prompt that is read alone in chunks.
func (w *Work) Prompt(c Cluster, tokens, chunk int) (sum Time) {
	const parts = 8 // chunks take longer as the context grows, linearly: a few are enough
	chunks := (tokens + chunk - 1) / chunk
	simulated := min(parts, chunks)
	for i := range simulated {
		at := (float64(i) + 0.5) / float64(simulated) * float64(tokens)
		t := w.step(load{rows: min(chunk, tokens), context: int(at), prompt: true, ranks: c.Nodes}, c.Machine, c.Link, c.Seed)
		times := float64(chunks) / float64(simulated)
		sum.Step += t.Step * times
		sum.Compute += t.Compute * times
		sum.Wait += t.Wait * times
		sum.Control += t.Control * times
		sum.Sent += t.Sent * times
		sum.Messages += t.Messages * times
		sum.Syncs += int(float64(t.Syncs) * times)
	}
	return sum
}
