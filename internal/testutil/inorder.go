package testutil

import "strings"

// InOrder reports whether a text contains the parts of want in order; " ... " separates them.
func InOrder(text, want string) bool {
	for _, part := range strings.Split(want, " ... ") {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}
