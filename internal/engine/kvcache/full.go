package kvcache

var full = Compose("full", "full", Parts{})

// Full returns the policy that keeps every token in the slot of its position, and reads all of them.
func Full() *Policy { return full }
