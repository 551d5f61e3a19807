package cluster_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// certificate writes a self-signed certificate for 127.0.0.1 and its key.
func certificate(t *testing.T, name, certFile, keyFile string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The API uses TLS, keys from a file and an audit log. SIGHUP reloads certificate and keys and
// reopens the log without interrupting anything. Unreadable files change nothing.
func TestHangupReadsKeysAndCertificateAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	first := certificate(t, "first", at("cert"), at("secret"))
	keys := func(secret string) {
		write(t, at("keys"), fmt.Sprintf(`{"keys": [{"name": "ann", "key": %q, "role": "operator"}]}`, secret))
	}
	keys("one")
	s := start(t, config{nodes: 1, key: "one",
		args: []string{"--tls-cert", at("cert"), "--tls-key", at("secret"), "--api-keys", at("keys"), "--audit-log", at("audit")}})
	for path, want := range map[string]os.FileMode{s.logs: 0o700, filepath.Join(s.logs, "node-0.log"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %04o", path, info.Mode(), err, want)
		}
	}
	seen := make(chan string, 1)
	roots := x509.NewCertPool()
	roots.AddCert(first)
	ask := func(key string) int {
		tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
		req, err := http.NewRequest("POST", s.base+"/tokenize", strings.NewReader(`{"prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Log(err)
			return 0
		}
		defer resp.Body.Close()
		select {
		case <-seen:
		default:
		}
		seen <- resp.TLS.PeerCertificates[0].Subject.CommonName
		return resp.StatusCode
	}
	if status := ask("one"); status != 200 || <-seen != "first" {
		t.Fatalf("status %d", status)
	}
	if status := ask("two"); status != 401 {
		t.Fatalf("a wrong key: %d", status)
	}
	if err := os.Rename(at("audit"), at("audit.1")); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"coordinator", "node-0"} {
		log := filepath.Join(s.logs, id+".log")
		if err := os.Rename(log, log+".1"); err != nil {
			t.Fatal(err)
		}
	}
	roots.AddCert(certificate(t, "second", at("cert"), at("secret")))
	keys("two")
	if err := s.head.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "the new key and certificate are in force", func() (bool, string) {
		status := ask("two")
		if status != 200 {
			return false, fmt.Sprint("status ", status)
		}
		name := <-seen
		return name == "second", "certificate of " + name
	})
	if status := ask("one"); status != 401 {
		t.Errorf("the old key: %d", status)
	}
	testutil.Eventually(t, patience, "the logs of the processes are reopened", func() (bool, string) {
		info, err := os.Stat(filepath.Join(s.logs, "node-0.log"))
		if err != nil || info.Mode().Perm() != 0o600 {
			return false, fmt.Sprint("node-0.log: ", info, err)
		}
		log, err := os.ReadFile(filepath.Join(s.logs, "coordinator.log"))
		return strings.Contains(string(log), "status=401"), fmt.Sprintf("coordinator.log: %q, %v", log, err)
	})
	write(t, at("keys"), `{"keys": []}`)
	if err := s.head.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "the log of an invalid key file", func() (bool, string) {
		log := tail(s.head.err)
		return strings.Contains(log, "API keys not reloaded"), log
	})
	if status := ask("two"); status != 200 {
		t.Errorf("after keys that are refused: %d", status)
	}
	keys("three")
	if err := os.Chmod(at("keys"), 0o644); err != nil { // detected without a signal
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "the log of a key file that others can read", func() (bool, string) {
		log := tail(s.head.err)
		return strings.Contains(log, "mode 0644") && strings.Contains(log, "level=ERROR"), log
	})
	if status := ask("two"); status != 200 {
		t.Errorf("after keys that others can read: %d", status)
	}
	for name, want := range map[string]string{"audit.1": `"key":"ann","role":"operator"`, "audit": `"status":401`} {
		if b, err := os.ReadFile(at(name)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
}
