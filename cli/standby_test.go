package cli

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestDoormanWaitsForNoBody: who announces a body and sends none gets the answer.
func TestDoormanWaitsForNoBody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	d := newDoorman(l, true, 50*time.Millisecond, nil)
	defer d.leave()
	if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, "503") {
		t.Errorf("%q, %v", line, err)
	}
}
