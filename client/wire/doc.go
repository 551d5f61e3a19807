// Package wire holds the JSON types that clients read from a server: the state of the
// cluster, its events and samples, and jobs. It imports nothing of the server.
package wire
