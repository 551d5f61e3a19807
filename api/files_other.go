//go:build !unix

package api

// openFiles is how many files this process may open, and how many it has; 0: not known.
func openFiles() (limit, open int) { return 0, 0 }
