//go:build !unix

package openfiles

// Count returns the limit of open files of this process and the number that are open; 0: unknown.
func Count() (limit, open int) { return 0, 0 }

// Limit returns the limit of open files of this process; 0: unknown.
func Limit() int { return 0 }

// Exhausted reports whether an error means that no more files can be opened.
func Exhausted(error) bool { return false }
