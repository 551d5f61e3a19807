package kvcache

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Clustering is the work at the end of a prompt in pieces between which others run, of which all
// sockets have the same number. The first, once After tokens have been read, are a quarter of a round of
// k-means each, for all heads of a layer that a socket has; with two levels those of the coarse centroids
// come behind all others. What is left of them when the prompt has been read is done with the hand-over,
// with the same result. That has pieces too, see Index: rows of a quarter of a layer's heads go to the
// owner (Moved), who makes their index; then, with two levels, what of each layer the coarse threshold
// leaves; then the thresholds.
type Clustering struct {
	After  int // tokens that must have been read
	Pieces int // 0: there is nothing to cluster
	Before int // pieces before the hand-over
	Fine   int // of these, before those of the coarse centroids

	Clusters           [3]int // what the clusters of given keys depend on: where it is the same, they are
	Work, Coarse, Move int64  // multiplications of a piece and head, or as much time
}

// ClusteringOf is that of a prompt part of so many tokens.
func ClusteringOf(g Geometry, prompt int, p *Policy) Clustering {
	if p.Arranger == nil {
		return Clustering{}
	}
	return p.Arranger.clustering(g, prompt)
}

func (c clusters) clustering(g Geometry, prompt int) (x Clustering) {
	if x.After = c.arranged(prompt); x.After > 0 {
		lo, hi := c.part(x.After, 0)
		x.Clusters = [3]int{x.After, c.share, c.segment}
		x.Fine = c.parts(x.After) * g.Layers * turns
		x.Work = int64(hi-lo) * int64(c.most(lo, hi)) * int64(g.Layout.KDim) / quarters
		fine := c.most(0, x.After)
		x.Before, x.Move = x.Fine, (int64(x.After)*movedAs+int64(fine*c.obs*g.group()))*int64(g.Layout.KDim)/quarters
		x.Pieces = g.Layers*quarters + 1
		if c.coarse > 0 {
			x.Before += g.Layers * turns
			x.Pieces += g.Layers
			x.Coarse = int64(fine) * int64(c.groups(fine)) * int64(g.Layout.KDim) / quarters
		}
		x.Pieces += x.Before
	}
	return x
}

// Moved is what a piece of the hand-over moves: heads of a layer, perhaps none; false: nothing of any.
func (g Geometry) Moved(piece int) (layer int, heads tensor.Span, ok bool) {
	i := piece % quarters
	return piece / quarters, tensor.Span{Lo: i * g.KVHeads / quarters, Hi: (i + 1) * g.KVHeads / quarters}, piece < g.Layers*quarters
}

// movedAs is how many multiplications an element take as long as moving it and adding it to a mean.
const movedAs = 16

// Within is how many pieces of one kind, after those done, have no more than most multiplications a
// head; one at least.
func (x Clustering) Within(done int, most int64) int {
	work, left := x.Work, x.Fine-done
	if left <= 0 {
		work, left = x.Coarse, x.Before-done
	}
	if left <= 0 {
		work, left = x.Move, x.Pieces-done
	}
	return int(min(max(1, most/max(1, work)), int64(left)))
}

const (
	rounds   = kMeansRounds + 1 // of k-means at most
	quarters = 4
	turns    = rounds * quarters // pieces of a layer
)

// Cluster does a piece, whose number is that of those before it, for the heads that from has of
// the prompt. run is that of Store.SealOn.
func (o *Observation) Cluster(from *Store, p *Policy, piece int, run func(n int, f func(i int))) {
	if o != nil && o.labels != nil {
		p.Arranger.piece(o, from, p, piece, run)
	}
}

func (c clusters) piece(o *Observation, from *Store, p *Policy, piece int, run func(n int, f func(i int))) {
	segment, layer, turn := piece/(o.g.Layers*turns), piece/turns%o.g.Layers, piece%turns
	n := c.arranged(o.prompt)
	if o.g.Rule(layer, p).Arranger != nil && o.at[layer] >= 0 {
		heads, fine := o.labelHeads(), segment < c.parts(n)
		for i := turn * heads / quarters; i < (turn+1)*heads/quarters; i++ { // head by head, of each all rounds
			head := i / rounds
			labels := o.labels[(o.at[layer]*heads+head)*o.prompt:][:n]
			if i%rounds == 0 {
				s := StatisticsOf(from, layer, o.labelHead(head))
				if fine {
					lo, hi := c.part(n, segment)
					o.means = newMeans(c.keys(s, lo, hi), s.Layout.KDim, c.most(lo, hi))
				} else {
					members := membersOf(labels)
					o.means = newMeans(c.centroids(s, members), s.Layout.KDim, c.groups(len(members)))
				}
			}
			if !o.means.done {
				o.means.next(run)
			}
			if i%rounds == rounds-1 {
				if fine {
					c.label(labels, n, segment, o.means.labels)
				} else {
					regroup(labels, membersOf(labels), o.means.labels)
				}
				o.means = nil
			}
		}
	}
	if layer == o.g.Layers-1 && turn == turns-1 {
		o.labelled = min(segment+1, c.parts(n))
	}
}

// labelHeads is how many heads of a layer have labels, and labelHead the number of one of them:
// in latent attention units share a head.
func (o *Observation) labelHeads() int {
	if o.g.Units > 0 {
		return 1
	}
	return o.heads.Hi - o.heads.Lo
}

func (o *Observation) labelHead(i int) int {
	if o.g.Units > 0 {
		return 0
	}
	return o.heads.Lo + i
}

// Label gives a head the clusters that were found.
func (o *Observation) Label(s *Statistics) {
	if o == nil || o.labels == nil || o.at[s.Layer] < 0 {
		return
	}
	i := o.at[s.Layer] * o.labelHeads()
	if o.g.Units == 0 {
		i += s.Head - o.heads.Lo
	}
	s.labels, s.labelled = o.labels[i*o.prompt:][:o.prompt], o.labelled
}
