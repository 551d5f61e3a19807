package launch

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestNotReadyServerSpeaksTLS checks that a waiting coordinator answers with the TLS settings of the
// API.
func TestNotReadyServerSpeaksTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cert := httptest.NewTLSServer(nil) // for its certificate
	defer cert.Close()
	d := newNotReadyServer(l, false, 5*time.Second, &tls.Config{Certificates: cert.TLS.Certificates})
	defer d.handOver()
	d.setReason("the store is away")
	client := cert.Client()
	client.Timeout = time.Minute
	resp, err := client.Get("https://" + l.Addr().String() + "/ready")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 503 || !strings.Contains(string(b), "the store is away") {
		t.Errorf("%d %s, %v", resp.StatusCode, b, err)
	}
}

// TestNotReadyServerDoesNotWaitForBodies checks that a client that announces a body and sends none
// gets an answer.
func TestNotReadyServerDoesNotWaitForBodies(t *testing.T) {
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
	d := newNotReadyServer(l, true, 50*time.Millisecond, nil)
	defer d.handOver()
	if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, "503") {
		t.Errorf("%q, %v", line, err)
	}
}
