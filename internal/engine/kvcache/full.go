package kvcache

// full keeps every token in the slot of its position, and reads all of them.
var full = methodFull.of()

var methodFull = method{name: "full", parts: func([]int) Parts { return Parts{} }}

// Full is the policy that keeps and reads every token.
func Full() *Policy { return full }
