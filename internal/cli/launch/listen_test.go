package launch

import (
	"net"
	"strings"
	"testing"
)

// TestListenAtTakenPort checks that the error for a used port suggests a remedy, and that other errors
// name the flag.
func TestListenAtTakenPort(t *testing.T) {
	l, err := listenAt("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var second net.Listener
	if second, err = listenAt(l.Addr().String()); err == nil {
		second.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "another program listens there") {
		t.Error(err)
	}
	if _, err = listenAt("127.0.0.1:port"); err == nil || !strings.HasPrefix(err.Error(), "--listen: ") {
		t.Error(err)
	}
}
