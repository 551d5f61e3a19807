package score

// PassAtK returns the probability that one of k samples is right, estimated without bias from n samples
// of which c are right (arXiv 2107.03374, equation 1). It returns 1 if fewer than k samples are
// wrong. k must be 1 to n, c 0 to n.
func PassAtK(n, c, k int) float64 {
	if n-c < k {
		return 1
	}
	fail := 1.0
	for i := n - c + 1; i <= n; i++ {
		fail *= 1 - float64(k)/float64(i)
	}
	return 1 - fail
}
