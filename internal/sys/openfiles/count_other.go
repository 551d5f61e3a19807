//go:build !unix

package openfiles

// Count is the number of files that this process may open, and the number that are open; 0: not
// known.
func Count() (limit, open int) { return 0, 0 }

// Limit is the number of files that this process may open; 0: not known.
func Limit() int { return 0 }

// Exhausted reports whether an error says that no more files can be opened.
func Exhausted(error) bool { return false }
