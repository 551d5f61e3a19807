// Package weights brings a checkpoint to nodes that have none: a server gives it away
// piece by piece, a Cache fetches the pieces that a node wants and keeps them on its
// disk, where folders that nobody uses are evicted. A piece is believed by its hash
// alone, so it matters to nobody who sent it.
package weights
