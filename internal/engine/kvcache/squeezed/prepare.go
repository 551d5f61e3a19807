package squeezed

import "github.com/shoal-llm/shoal/internal/engine/kvcache"

// Pieces before the hand-over are quarters of a round of k-means, for all heads of a layer on a
// socket, segment by segment. With two levels, those of the coarse centroids follow. The pieces of
// the hand-over index the heads that have moved. With two levels, a piece per layer then prunes fine
// centroids by the coarse threshold. The last piece sets the thresholds.

const (
	rounds = kMeansRounds + 1          // of k-means, at most
	turns  = rounds * kvcache.Quarters // pieces per layer

	// movedAs is the cost of moving an element and adding it to a mean, in multiplications.
	movedAs = 16
)

// Fits implements kvcache.PromptIndex.
func (clusters) Fits(kvcache.Geometry) error { return nil }

// Plan implements kvcache.PromptIndex.
func (c clusters) Plan(g kvcache.Geometry, prompt int) (p kvcache.IndexPlan) {
	x := &p.IndexWork
	if x.After = c.arranged(prompt); x.After > 0 {
		lo, hi := c.part(x.After, 0)
		x.Clusters = [3]int{x.After, c.share, c.segment}
		x.Fine = c.parts(x.After) * g.Layers * turns
		x.Work = int64(hi-lo) * int64(c.most(lo, hi)) * int64(g.Layout.KDim) / kvcache.Quarters
		fine := c.most(0, x.After)
		x.Before, x.Move = x.Fine, (int64(x.After)*movedAs+int64(fine*c.obs*max(1, g.Group)))*int64(g.Layout.KDim)/kvcache.Quarters
		x.Pieces = g.Layers*kvcache.Quarters + 1
		if c.coarse > 0 {
			x.Before += g.Layers * turns
			x.Pieces += g.Layers
			x.Coarse = int64(fine) * int64(c.groups(fine)) * int64(g.Layout.KDim) / kvcache.Quarters
		}
		x.Pieces += x.Before
	}
	return p
}

// lastSegment returns the number of the segment whose pieces complete the labels of n tokens. The coarse
// centroids count as one more segment.
func (c clusters) lastSegment(n int) int {
	if c.coarse > 0 {
		return c.parts(n)
	}
	return c.parts(n) - 1
}

// prepared is the state of Prepare in an observation.
type prepared struct {
	segments int             // segments with complete labels
	means    *means          // of the head in progress
	recalled map[[2]int]bool // by layer and head: all labels were computed before
}

// preparedOf returns the state that an observation holds; the first one if it holds none.
func preparedOf(state any) *prepared {
	if p, ok := state.(*prepared); ok {
		return p
	}
	return &prepared{recalled: map[[2]int]bool{}}
}

// Prepare implements kvcache.PromptIndex.
func (c clusters) Prepare(o *kvcache.Observation, from *kvcache.Store, piece int, run kvcache.Run) {
	p, layers := preparedOf(o.Prepared), from.Geometry().Layers
	o.Prepared = p
	segment, layer, turn := piece/(layers*turns), piece/turns%layers, piece%turns
	of, n := o.LabelHeads(), c.arranged(o.Prompt())
	if o.Labels(layer, of.Lo) != nil {
		fine := segment < c.parts(n)
		for i := turn * of.Len() / kvcache.Quarters; i < (turn+1)*of.Len()/kvcache.Quarters; i++ { // all rounds of one head before the next head
			head := of.Lo + i/rounds
			labels := o.Labels(layer, head)[:n]
			if segment == 0 && i%rounds == 0 && c.recallLabels(o.Results, layer, head, labels) {
				p.recalled[[2]int{layer, head}] = true
			}
			if p.recalled[[2]int{layer, head}] {
				continue
			}
			if i%rounds == 0 {
				s := kvcache.StatisticsOf(from, layer, head)
				if fine {
					lo, hi := c.part(n, segment)
					p.means = newMeans(c.keys(s, lo, hi), s.Layout.KDim, c.most(lo, hi))
				} else {
					members := membersOf(labels)
					p.means = newMeans(c.centroids(s, members), s.Layout.KDim, c.groups(len(members)))
				}
			}
			if !p.means.done {
				p.means.next(run)
			}
			if i%rounds == rounds-1 {
				if fine {
					c.label(labels, n, segment, p.means.labels)
				} else {
					regroup(labels, membersOf(labels), p.means.labels)
				}
				p.means = nil
				if segment == c.lastSegment(n) {
					keepLabels(o.Results, layer, head, labels)
				}
			}
		}
	}
	if layer == layers-1 && turn == turns-1 {
		p.segments = min(segment+1, c.parts(n))
	}
}
