// Package memory holds the memory of caches: an [Arena] of blocks under one byte ledger, in the memory
// of the host or of a device, such as a graphics card.
//
// A block on a device is a handle: a slice of address space that the host can neither read nor write.
// The device finds a block by its offset in that space. The host moves rows through a [Window], which
// copies one block at a time. An arena in host memory has no Remote, and its windows copy nothing.
package memory

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Remote is the memory of a device. Its methods may be called concurrently. They run in order
// with the device's work on the blocks. If the device fails, they do not return: its owner ends the
// process, because the blocks are lost.
type Remote interface {
	// Map returns a handle of n zero bytes for blocks of the given size. Its offset is a multiple of
	// that size. Unmap frees it.
	Map(n, block int) ([]byte, error)
	Unmap(handle []byte) error
	// Zero clears a block.
	Zero(block []byte)
	// Read copies a block to the host, and Write copies it back.
	Read(to, block []byte)
	Write(block, from []byte)
	// Copy copies a block to another one.
	Copy(to, from []byte)
	// Restore is tensor.KVLayout.LoadRow of several rows. No two of them have the same slot.
	Restore(l tensor.KVLayout, rows []Saved)
}

// Saved is a row of a block in row form (tensor.KVLayout.SaveRow), and the slot of a block that it was copied
// from.
type Saved struct {
	Block []byte
	Slot  int
	Rows  []byte
	Row   int
}

// Window gives the host access to the blocks of an arena, one block at a time. The zero Window is for
// host memory. Only one goroutine may use a Window.
type Window struct {
	remote  Remote // nil: blocks are in host memory
	block   []byte
	bytes   []byte // copy of block
	changed bool
}

// Read returns the bytes of a block. They are valid until the next call with another block.
func (w *Window) Read(block []byte) []byte {
	if w.remote == nil {
		return block
	}
	if len(block) == 0 || len(w.block) == len(block) && &w.block[0] == &block[0] {
		return w.bytes
	}
	w.Close()
	w.block = block
	if cap(w.bytes) < len(block) {
		w.bytes = make([]byte, len(block))
	}
	w.bytes = w.bytes[:len(block)]
	w.remote.Read(w.bytes, block)
	return w.bytes
}

// Edit is Read for bytes that the caller changes. The next call with another block, or Close, writes them
// to the block.
func (w *Window) Edit(block []byte) []byte {
	b := w.Read(block)
	w.changed = true
	return b
}

// Close writes changed bytes to their block. The window may be used again.
func (w *Window) Close() {
	if w.remote != nil && w.changed && w.block != nil {
		w.remote.Write(w.block, w.bytes)
	}
	w.block, w.changed = nil, false
}
