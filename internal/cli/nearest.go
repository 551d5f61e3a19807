package cli

// nearest is the known word with the fewest edits from word, and their number; "" when none
// of them is closer than half of the word's length.
func nearest(word string, known []string) (best string, distance int) {
	distance = len(word)/2 + 1
	for _, k := range known {
		if d := editDistance(word, k); d < distance {
			best, distance = k, d
		}
	}
	return best, distance
}

// editDistance is the distance of two words by insertion, deletion and replacement of one byte, and
// by exchange of two neighbours (optimal string alignment).
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
