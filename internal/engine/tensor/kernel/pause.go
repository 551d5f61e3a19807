package kernel

// Pause tells the CPU that the thread waits in a loop.
func Pause() { pause() }
