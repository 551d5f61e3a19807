package supervise

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
)

// TestEndedChildrenAreForgotten: a process that ends at once and is started again and again leaves nothing behind.
func TestEndedChildrenAreForgotten(t *testing.T) {
	c := New(security.NewKey(), slog.New(slog.DiscardHandler))
	for range 3 {
		ended := make(chan error, 1)
		x := Child{ID: "a", Args: []string{"-test.run", "^$"}, Stderr: io.Discard, Exited: func(err error) { ended <- err }}
		if err := c.Start(x); err != nil { // this test program, which does not know the flag of the key
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err == nil {
				t.Error("the process ended without an error")
			}
		case <-time.After(time.Minute):
			t.Fatal("the process does not end")
		}
	}
	c.mu.Lock()
	kept := len(c.list)
	c.mu.Unlock()
	if kept != 0 || c.Alive() != 0 || len(c.PIDs()) != 0 {
		t.Errorf("%d records of ended processes, %d alive, %v", kept, c.Alive(), c.PIDs())
	}
	c.Stop(time.Second)
	if err := c.Start(Child{ID: "a", Stderr: io.Discard}); err == nil {
		t.Error("a process was started after the end")
	}
}
