package kernel

// Pause executes the CPU's hint for a loop that waits, if there is one.
func Pause() { pause() }
