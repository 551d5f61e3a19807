package cli

// nearest returns the known word with the smallest edit distance from word, and that distance. It
// returns "" if the distance of every word is more than half of the length of word.
func nearest(word string, known []string) (best string, distance int) {
	distance = len(word)/2 + 1
	for _, k := range known {
		if d := editDistance(word, k); d < distance {
			best, distance = k, d
		}
	}
	return best, distance
}

// editDistance returns the optimal string alignment distance of two words: the number of
// insertions, deletions and replacements of a byte, and of swaps of two neighbours.
func editDistance(a, b string) int {
	last, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], last[j-1]+1)
			}
		}
		last, row, next = row, next, last
	}
	return row[len(b)]
}
