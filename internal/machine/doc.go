// Package machine measures the computer that this process runs on: its memory limit, its
// read bandwidth, the speed of matrix products, and the time of one exchange between nodes.
package machine
