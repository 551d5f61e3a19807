// Package mmap maps weight files. After a mapped file is truncated, reads of the missing pages
// fault: read mappings within Guard.
package mmap
