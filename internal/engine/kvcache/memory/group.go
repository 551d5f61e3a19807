package memory

// Group is the blocks of one size among those that are allocated together.
type Group struct {
	Size, N int
	Blocks  [][]byte
}

// Groups counts the blocks of each size that sizes yields.
func Groups(sizes func(yield func(size int))) (all []Group) {
	sizes(func(size int) { of(&all, size).N++ })
	return all
}

// Deal returns the blocks of groups in the order of sizes.
func Deal(all []Group, sizes func(yield func(size int))) (out [][]byte) {
	sizes(func(size int) {
		g := of(&all, size)
		out, g.Blocks = append(out, g.Blocks[0]), g.Blocks[1:]
	})
	return out
}

func of(all *[]Group, size int) *Group {
	for i := range *all {
		if (*all)[i].Size == size {
			return &(*all)[i]
		}
	}
	*all = append(*all, Group{Size: size})
	return &(*all)[len(*all)-1]
}
