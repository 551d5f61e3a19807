package squeezed

import "testing"

// All segments together have at most as many clusters as the index has room for.
func TestSegmentsFitTheIndex(t *testing.T) {
	for _, share := range []int{5, 7, 9, 14, 50, 333, 500} {
		for _, segment := range []int{64, 100, 150, 8192} {
			for n := (999 + share) / share; n < 3000; n += 7 {
				c, all := clusters{share: share, segment: segment}, 0
				for i := range c.parts(n) {
					all += c.most(c.part(n, i))
				}
				if most := c.most(0, n); all > most {
					t.Fatalf("clusters of %d thousandths of %d keys in segments of %d: %d, the index has room for %d", share, n, segment, all, most)
				}
			}
		}
	}
}
