// Package crc32c computes the checksum of messages, cache rows and files of weights: CRC-32C, for which
// processors have an instruction.
package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Of returns the checksum of b.
func Of(b []byte) uint32 { return crc32.Checksum(b, table) }
