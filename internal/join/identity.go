package join

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"path/filepath"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
)

// identity is the server's certificate. Its key is in a file, so that tokens stay valid when
// the server is started again.
type identity struct {
	cert tls.Certificate
	pin  Pin
}

const keyBlock = "PRIVATE KEY"

// openIdentity reads the key in a folder, or makes one.
func openIdentity(dir string) (identity, error) {
	path := filepath.Join(dir, "identity.pem")
	text, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = newIdentity(); err == nil {
			err = security.CreatePrivate(path, text)
		}
		if errors.Is(err, fs.ErrExist) { // another process has just made it
			text, err = readPrivate(path)
		}
	}
	if err != nil {
		return identity{}, fmt.Errorf("join: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != keyBlock {
		return identity{}, fmt.Errorf("join: %s holds no PEM block %q: remove the file to have another one made, which ends all tokens",
			path, keyBlock)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return identity{}, fmt.Errorf("join: %s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return identity{}, fmt.Errorf("join: %s holds a key of another kind (%T), want Ed25519", path, parsed)
	}
	return selfSigned(key)
}

func newIdentity() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// selfSigned returns a certificate of the key. Its dates are never checked: a fingerprint names the
// key, so that a machine needs no clock to join.
func selfSigned(key ed25519.PrivateKey) (identity, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shoal join"},
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return identity{}, fmt.Errorf("join: certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return identity{}, fmt.Errorf("join: certificate: %w", err)
	}
	return identity{cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pin: pinOf(leaf)}, nil
}

func pinOf(c *x509.Certificate) Pin { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// readAtMost reads all of r, which may hold n bytes.
func readAtMost(r io.Reader, n int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, n+1))
	if err == nil && int64(len(b)) > n {
		err = fmt.Errorf("more than %d bytes", n)
	}
	return b, err
}
