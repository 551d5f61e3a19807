// Package lab has the subcommands of shoal lab: measurements of speed and accuracy.
package lab
