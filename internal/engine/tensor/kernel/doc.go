// Package kernel has the functions of package tensor for which there is assembly: products of tiles,
// the steps of attention, and operations on rows. Set is one implementation of all of them. The portable
// one is the definition, and all give the same bits.
package kernel
