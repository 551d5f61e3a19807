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

// Certificates are valid for a day and renewed in memory after half of it. They start in the past,
// to tolerate clocks that differ by about an hour.
const (
	certLife = 24 * time.Hour
	certSkew = 2 * time.Hour
)

var (
	// ErrWrongKey: the peer's certificate was made from another cluster key.
	ErrWrongKey = errors.New("security: the peer belongs to another cluster: its certificate was made from another cluster key")
	// ErrExpired: the peer's certificate is not valid at this machine's time.
	ErrExpired = errors.New("security: the peer's certificate is not valid now")
	// ErrRole: the peer belongs to the cluster, but its role is not allowed here.
	ErrRole = errors.New("security: role not allowed here")
)

// TLS returns the two sides of mutual TLS 1.3 for a process of this cluster. The
// certificate of a side proves that it holds the key, and names its identity. Host names
// are not verified, since nodes move. A peer is refused if its role is not among
// allowed (default: every role).
//
// The certificate is derived from the key in memory and renewed while the
// configurations are in use. Nothing is written to disk.
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

// authority is the certificate authority of a cluster. Key, serial number and dates are derived
// from the cluster key, and Ed25519 signatures are deterministic. So every process creates the same
// CA certificate, bit for bit.
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

// issuer keeps a valid certificate of one identity.
type issuer struct {
	key Key
	id  Identity
	now func() time.Time

	mu      sync.Mutex
	keys    []Key        // the keys that cas were made from
	cas     []*authority // one per key
	current *tls.Certificate
}

// authorities returns those of the accepted keys, the one in use first.
func (i *issuer) authorities() ([]*authority, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.follow()
}

// follow updates the authorities after a key change. i.mu must be held.
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
	// Both sides use verify, so that their errors have the same wording. The standard verification
	// requires host names of servers.
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
		InsecureSkipVerify:     true, // skips host names only; verify checks the rest
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
		return fmt.Errorf("%w: valid from %s to %s, but the time here is %s; compare the clocks of both machines", ErrExpired,
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
		return fmt.Errorf("%w: %s has the role %q, want one of %v", ErrRole, peer, peer.Role, allowed)
	}
	return nil
}
