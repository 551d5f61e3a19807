// Package policy holds the rules of the house as tests: who may import whom,
// which module from outside is whose, which files only decide. It reads the
// source of every package, on every architecture, tests included. Each rule has
// a test that shows it go red.
package policy
