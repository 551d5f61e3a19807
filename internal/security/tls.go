package security

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Certificates live a day, are renewed in memory after half of it, and begin
// earlier than now so that clocks which differ by an hour or so still agree.
const (
	certLife = 24 * time.Hour
	certSkew = 2 * time.Hour
)

var (
	// ErrWrongKey: the peer's certificate was signed by another cluster key.
	ErrWrongKey = errors.New("security: the peer belongs to another cluster: its certificate was made from another cluster key")
	// ErrExpired: the peer's certificate is not valid at this machine's time.
	ErrExpired = errors.New("security: the peer's certificate is not valid now")
	// ErrRole: the peer is of this cluster but has no business here.
	ErrRole = errors.New("security: role not allowed here")
)

// TLS makes the two halves of mutual TLS 1.3 for a process of this cluster.
// Each side proves by certificate that it holds the key and names its
// identity; hosts and addresses are not looked at, since nodes move. A peer
// whose role is not among allowed (default: every role) is refused.
//
// The certificate is issued here, from the key, and renewed by itself for as
// long as the configurations are in use; nothing is written to disk.
func (k Key) TLS(id Identity, allowed ...Role) (server, client *tls.Config, err error) {
	if k.IsZero() {
		return nil, nil, ErrNoKey
	}
	if err := id.Validate(); err != nil {
		return nil, nil, err
	}
	if len(allowed) == 0 {
		allowed = Roles()
	}
	iss := &issuer{key: k, id: id, now: time.Now}
	if _, err := iss.certificate(); err != nil {
		return nil, nil, err
	}
	return iss.configs(allowed)
}

// authority is the certificate authority of a cluster. Key, serial number and
// dates follow from the cluster key alone, and Ed25519 signs without
// randomness: every process makes the same certificate, bit for bit.
type authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func (k Key) authority() (*authority, error) {
	key := ed25519.NewKeyFromSeed(k.derive("certificate authority ed25519", ed25519.SeedSize))
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(k.derive("certificate authority serial", 15)),
		Subject:               pkix.Name{CommonName: "shoal cluster " + k.Fingerprint()},
		NotBefore:             time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("security: certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("security: certificate authority: %w", err)
	}
	return &authority{cert: cert, key: key}, nil
}

func (a *authority) issue(id Identity, from, until time.Time) (*tls.Certificate, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("security: certificate: %w", err)
	}
	serial := make([]byte, 15)
	rand.Read(serial)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      pkix.Name{CommonName: id.ID},
		NotBefore:    from,
		NotAfter:     until,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{id.URI()},
	}, a.cert, pub, a.key)
	if err != nil {
		return nil, fmt.Errorf("security: certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("security: certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// issuer keeps a fresh certificate of one identity.
type issuer struct {
	key Key
	id  Identity
	now func() time.Time

	mu      sync.Mutex
	keys    []Key        // as they were when cas was made
	cas     []*authority // of each
	current *tls.Certificate
}

// authorities are those of the keys that are accepted now, the one in use first.
func (i *issuer) authorities() ([]*authority, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.follow()
}

// follow brings the authorities up with the key; the lock is held.
func (i *issuer) follow() ([]*authority, error) {
	keys := i.key.Keys()
	if slices.EqualFunc(keys, i.keys, Key.Equal) {
		return i.cas, nil
	}
	cas := make([]*authority, len(keys))
	for n, k := range keys {
		var err error
		if cas[n], err = k.authority(); err != nil {
			return nil, err
		}
	}
	if len(i.keys) == 0 || !keys[0].Equal(i.keys[0]) {
		i.current = nil
	}
	i.keys, i.cas = keys, cas
	return cas, nil
}

func (i *issuer) certificate() (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	cas, err := i.follow()
	if err != nil {
		return nil, err
	}
	now := i.now()
	if i.current != nil && now.Before(i.current.Leaf.NotAfter.Add(-certLife/2)) && now.After(i.current.Leaf.NotBefore) {
		return i.current, nil
	}
	c, err := cas[0].issue(i.id, now.Add(-certSkew), now.Add(certLife))
	if err != nil {
		return nil, err
	}
	i.current = c
	return c, nil
}

func (i *issuer) configs(allowed []Role) (server, client *tls.Config, err error) {
	// Both sides verify in verify, for the same words in the same errors: the
	// standard verification insists on host names for servers.
	server = &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.certificate() },
		ClientAuth:             tls.RequireAnyClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection:       func(s tls.ConnectionState) error { return i.verify(&s, allowed) },
		Time:                   i.now,
	}
	client = &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.certificate() },
		InsecureSkipVerify:     true, // of the host name; verify checks the rest
		SessionTicketsDisabled: true,
		VerifyConnection:       func(s tls.ConnectionState) error { return i.verify(&s, allowed) },
		Time:                   i.now,
	}
	return server, client, nil
}

func (i *issuer) verify(s *tls.ConnectionState, allowed []Role) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: the peer sent none", ErrIdentity)
	}
	leaf := s.PeerCertificates[0]
	cas, err := i.authorities()
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AddCert(ca.cert)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: i.now(),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w: valid from %s to %s, here it is %s; compare the clocks of both machines", ErrExpired,
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), i.now().UTC().Format(time.RFC3339))
	default:
		return fmt.Errorf("%w; give every process the same %s (issuer %q, ours %q)", ErrWrongKey, EnvKey,
			leaf.Issuer.CommonName, cas[0].cert.Subject.CommonName)
	}
	peer, err := identityOf(leaf)
	if err != nil {
		return err
	}
	if !slices.Contains(allowed, peer.Role) {
		return fmt.Errorf("%w: %s came as %q, this side takes %v", ErrRole, peer, peer.Role, allowed)
	}
	return nil
}
