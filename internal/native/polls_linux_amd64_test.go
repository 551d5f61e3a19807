//go:build !purego

package native

func init() { setPolls = func(n int) { polls = n } }
