// Package policy has the rules of the tree as tests: which package may import which, which package
// may use which external module, and which files must be pure. It reads the source of every package
// for every architecture, including tests. Another test shows that each rule can fail.
package policy
