// Package launch starts processes of a cluster: one of them (coordinator, node) or a local cluster
// (up). It has their flags, keys and tokens.
package launch
