// Package weights transfers a checkpoint to nodes that have none. A server sends it chunk by chunk.
// A Cache fetches the chunks that a node needs and keeps them on disk. Unused cache folders are
// evicted. Every chunk is verified by its hash, so its sender need not be trusted.
package weights
