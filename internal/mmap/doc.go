// Package mmap maps files of weights. Whoever truncates a mapped file kills
// the process that reads it (SIGBUS): replace such files by rename.
package mmap
