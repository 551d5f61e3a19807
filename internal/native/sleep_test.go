package native

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestCallersWake calls a function that takes longer than a caller polls for its end, so that the caller
// sleeps, while other threads use all processors. Each call must return.
func TestCallersWake(t *testing.T) {
	lib, err := Open("libc.so.6")
	if errors.Is(err, ErrUnavailable) && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	usleep, err := lib.Func("usleep")
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	ended := make(chan int, 1)
	defer stop.Store(true)
	for range 8 {
		go func() {
			for !stop.Load() {
			}
		}()
	}
	go func() {
		n := 0
		for began := time.Now(); time.Since(began) < 2*time.Second; n++ {
			usleep.Call(uintptr(n % 60))
		}
		ended <- n
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("a call has not returned after a minute")
	}
}
