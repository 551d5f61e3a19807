// Package workers has the parts of a pool of threads: shares of tasks, the waiting of idle threads, and
// the accounting of their time.
package workers
