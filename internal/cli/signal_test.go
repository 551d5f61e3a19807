package cli

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// timeout(1) sends SIGTERM twice at once, to its command and to the process group: that is one request to
// stop, so running requests are not cut off. A later signal is the second request.
func TestSecondSignalIsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		signals <- syscall.SIGTERM
		time.AfterFunc(sameStop/2, func() { signals <- os.Interrupt })
		time.AfterFunc(time.Minute, func() { signals <- syscall.SIGTERM })
		began := time.Now()
		if s := secondSignal(signals); time.Since(began) != time.Minute || s != syscall.SIGTERM {
			t.Errorf("%v after %v, want the signal after a minute", s, time.Since(began))
		}
	})
}
