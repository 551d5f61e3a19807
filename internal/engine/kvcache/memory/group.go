package memory

// group is the blocks of one size among those that are allocated together.
type group struct {
	Size, N int
	Blocks  [][]byte
}

// blockGroups counts the blocks of each size that sizes yields.
func blockGroups(sizes func(yield func(size int))) (all []group) {
	sizes(func(size int) { of(&all, size).N++ })
	return all
}

// deal returns the blocks of groups in the order of sizes.
func deal(all []group, sizes func(yield func(size int))) (out [][]byte) {
	sizes(func(size int) {
		g := of(&all, size)
		out, g.Blocks = append(out, g.Blocks[0]), g.Blocks[1:]
	})
	return out
}

func of(all *[]group, size int) *group {
	for i := range *all {
		if (*all)[i].Size == size {
			return &(*all)[i]
		}
	}
	*all = append(*all, group{Size: size})
	return &(*all)[len(*all)-1]
}
