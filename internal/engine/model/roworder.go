package model

// Order is the order in which the rows of a projection, or the elements of its bias or of a norm of
// heads, are stored. The arithmetic rotates pairs of halves: element i of a head with element
// i+dim/2. Rows that are stored otherwise are read in another order, the same for queries and keys.
// That leaves every product of these rows unchanged.
type Order struct {
	Head       int  // rows of a head; 0: rows are stored in the order of the computation
	Plain      int  // first rows of a head, which stay in their places; the others are rotated as pairs of halves
	Rotated    int  // rows after them whose pairs rotate; the rest has frequency 0
	Neighbours bool // pairs are stored as rows 2i and 2i+1; false: as rows i and i+Rotated/2
}

// Row returns the stored position of row r.
func (o Order) Row(r int) int {
	if o.Head == 0 {
		return r
	}
	i := r%o.Head - o.Plain
	if i < 0 {
		return r
	}
	half, turning := (o.Head-o.Plain)/2, o.Rotated/2
	pair, second := i%half, i/half
	at := 0
	switch {
	case pair >= turning: // after all rows that rotate
		at = o.Rotated + second*(half-turning) + pair - turning
	case o.Neighbours:
		at = 2*pair + second
	default:
		at = second*turning + pair
	}
	return r - i + at
}

// HeadOrder returns the order of query and key heads in the files.
func (c *Config) HeadOrder() Order {
	rotated := c.rotated()
	if rotated == c.RopeDim() && !c.Neighbours {
		return Order{}
	}
	return Order{Head: c.HeadDim, Rotated: rotated, Neighbours: c.Neighbours}
}

// rotated returns the number of elements of a head that rotate.
func (c *Config) rotated() int {
	if c.Rotated > 0 {
		return c.Rotated
	}
	return c.RopeDim()
}
