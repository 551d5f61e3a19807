package ui

import (
	"fmt"
)

// Plural formats a number with a noun: "1 node", "2 nodes".
func Plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

// Count formats a number of parameters or tokens: "1.24B", "3.0M", "512".
func Count(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2fB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}
