package engine

import (
	"errors"
	"time"
)

// Adapter is a LoRA adapter that requests choose by its name as their model.
type Adapter struct {
	Name    string
	ID      string // identifies its bytes
	Root    string // where its files come from
	Rank    int
	Bytes   int64 // memory on one node, at most
	Created time.Time
}

// Adapters is implemented by an engine that has LoRA adapters. All methods may be called concurrently.
type Adapters interface {
	// Adapters lists the adapters by name, and Adapter returns one of them.
	Adapters() []Adapter
	Adapter(name string) (Adapter, bool)
	// LoadAdapter serves the adapter in a folder. UnloadAdapter releases its name; requests that use it
	// continue.
	LoadAdapter(name, path string) error
	UnloadAdapter(name string) error
}

// Errors of Adapters. All others mean that the client must change something.
var (
	ErrNoAdapter   = errors.New("there is no such adapter")
	ErrAdaptersOff = errors.New("adapters cannot be loaded over the API")
)
