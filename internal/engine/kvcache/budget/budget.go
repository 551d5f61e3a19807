// Package budget divides the slots of a compressor among the layers of a model.
package budget

// Pyramid returns the budget of PyramidKV (arXiv 2406.02069, section 4.2) in slots per head: lower layers get more
// than higher ones, in a straight line. topk is the mean over all layers. The highest layer gets topk/beta, and
// the lowest as much more than the mean. No layer gets more than the candidates of a prompt. The rest
// of its budget goes to the higher layers, as in the authors' code. layer counts from the lowest of
// layers.
func Pyramid(topk, beta, candidates, layer, layers int) int {
	if candidates <= topk || layers < 2 {
		return topk
	}
	least := topk / beta
	most := min(2*topk-least, candidates)
	least = 2*topk - most
	return most - (most-least)*layer/(layers-1)
}
