package kvcache

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Clustering describes the clustering of a prompt as pieces of work between the steps of other
// sequences. All sockets have the same number of pieces.
//
// The first Before pieces can run once After tokens have been read. Each is a quarter of a round of
// k-means, for all heads of a layer on a socket. With two levels, the pieces of the coarse
// centroids follow those of the fine ones. The hand-over does whatever is left of them when the
// prompt has been read, with the same result.
//
// The pieces of the hand-over follow, see Index. Each moves the rows of a quarter of a layer's
// heads to the owner (Moved), which indexes them. With two levels, a piece per layer then prunes
// fine centroids by the coarse threshold. The last piece sets the thresholds.
type Clustering struct {
	After  int // tokens that must have been read
	Pieces int // 0: nothing to cluster
	Before int // pieces before the hand-over
	Fine   int // part of Before: pieces of the fine centroids

	Clusters           [3]int // the parameters of the clusters: equal keys and parameters give equal clusters
	Work, Coarse, Move int64  // multiplications per head in one piece of each kind, or equivalent time
}

// ClusteringOf returns the clustering of a prompt part of that many tokens.
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

// Moved returns what a piece of the hand-over moves: heads of a layer, perhaps none. ok is false
// for pieces that move nothing.
func (g Geometry) Moved(piece int) (layer int, heads tensor.Span, ok bool) {
	i := piece % quarters
	return piece / quarters, tensor.Span{Lo: i * g.KVHeads / quarters, Hi: (i + 1) * g.KVHeads / quarters}, piece < g.Layers*quarters
}

// movedAs is the cost of moving an element and adding it to a mean, in multiplications.
const movedAs = 16

// Within returns how many of the pieces after the first done ones, all of one kind, fit in most
// multiplications a head; at least one.
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
	rounds   = kMeansRounds + 1 // of k-means, at most
	quarters = 4
	turns    = rounds * quarters // pieces per layer
)

// Cluster does one piece, by number, for the heads of the prompt that from holds. run is as in
// Store.SealOn.
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
		for i := turn * heads / quarters; i < (turn+1)*heads/quarters; i++ { // all rounds of one head before the next head
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

// labelHeads is the number of heads of a layer with labels; labelHead is the index of a head among
// them. In latent attention all units share one head.
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

// Label copies the clusters found so far to a head's statistics.
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
