// Package mmap maps files of weights. When a mapped file is truncated, reads of the missing
// pages fault: read mappings within Guard.
package mmap
