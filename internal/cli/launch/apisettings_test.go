package launch

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// writeCertificate writes a self-signed certificate with a name, and its key.
func writeCertificate(t *testing.T, name, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStandbyRenewsItsCertificate: the certificate is renewed while a process is a standby, so before it serves the API. It
// must not serve with the old one, which may have expired, after a takeover.
func TestStandbyRenewsItsCertificate(t *testing.T) {
	dir := t.TempDir()
	f := &listenFlags{TLSCert: filepath.Join(dir, "cert"), TLSKey: filepath.Join(dir, "key")}
	writeCertificate(t, "old", f.TLSCert, f.TLSKey)
	s, err := f.openSettings(&ui.Env{Ctx: t.Context(), Stdin: strings.NewReader("")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	name := func() string {
		c, err := s.tls().GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.Subject.CommonName
	}
	if name() != "old" {
		t.Fatalf("the certificate is %s", name())
	}
	writeCertificate(t, "renewed", f.TLSCert, f.TLSKey)
	testutil.Eventually(t, time.Minute, "the renewed certificate", func() (bool, string) { return name() == "renewed", name() })
}
