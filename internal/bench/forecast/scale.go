package forecast

// Point is a cluster size of a scaling curve.
type Point struct {
	Nodes   int     `json:"nodes"`
	Step    float64 `json:"step_s"`
	Compute float64 `json:"compute_s"`
	Wait    float64 `json:"wait_s"`
	Rate    float64 `json:"tokens_per_s"`
	// Limits lists, for each cost, the part of the step that would be saved if it were zero. Parts may
	// overlap.
	Limits []Limit `json:"limits"`
}

// Limit is a cost of a step.
type Limit struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"` // of the step
}

// limits are the costs that Scale removes one at a time.
var limits = []struct {
	name   string
	remove func(*Cluster)
}{
	{"reading and multiplying", func(c *Cluster) { c.Machine.Table = c.Machine.Times(0) }},
	{"waking threads", func(c *Cluster) { c.Machine.Region, c.Machine.Start = 0, 0 }},
	{"software of messages", func(c *Cluster) { c.Machine.Message, c.Machine.Byte, c.Machine.Copy = 0, 0, 0 }},
	{"software of exchanges", func(c *Cluster) { c.Machine.Exchange = 0 }},
	{"delay of the link", func(c *Cluster) { c.Link.Delay = 0 }},
	{"rate of the link", func(c *Cluster) { c.Link.Rate = 0 }},
	{"uneven computation", func(c *Cluster) { c.Machine.Noise = 0 }},
}

// Scale returns the time of the same step on several numbers of nodes, with the most threads, and its
// largest costs first.
func (w *Work) Scale(c Cluster, nodes []int, batch, slots int) (out []Point) {
	c.Fewer = nil
	for _, n := range nodes {
		c.Nodes = n
		t := w.Decode(c, batch, slots)
		p := Point{Nodes: n, Step: t.Step, Compute: t.Compute, Wait: t.Wait, Rate: float64(batch) / t.Step}
		for _, l := range limits {
			less := c
			l.remove(&less)
			share := 1 - w.Decode(less, batch, slots).Step/t.Step
			at := len(p.Limits)
			for at > 0 && p.Limits[at-1].Share < share {
				at--
			}
			p.Limits = append(p.Limits, Limit{})
			copy(p.Limits[at+1:], p.Limits[at:])
			p.Limits[at] = Limit{l.name, share}
		}
		out = append(out, p)
	}
	return out
}
