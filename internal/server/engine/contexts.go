package engine

// Contexts is implemented by an engine that keeps fixed contexts.
type Contexts interface {
	// Contexts returns the state of the cache of each request with Hold, by ID. It must not block on a node.
	Contexts() map[string]ContextState
}

// ContextState is where the cache of a fixed context is.
type ContextState string

const (
	ContextReading ContextState = "reading" // its text is being read, or waits for that the first time
	ContextReady   ContextState = "ready"   // in memory
	ContextEvicted ContextState = "evicted" // nowhere: memory was short. Its text is read again when there is memory
)
