// Package lab has the commands below shoal lab: measurements of speed and accuracy.
package lab
