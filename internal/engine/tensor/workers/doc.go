// Package workers has the parts of a pool of threads: how they share tasks, how an idle one waits, and
// what they spend their time on.
package workers
