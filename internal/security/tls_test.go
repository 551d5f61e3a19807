package security

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

const knownFingerprint = "62fca7e2"

// shake connects a server and a client over loopback and returns the errors of both and the
// client's identity.
func shake(t *testing.T, server, client *tls.Config) (atServer, atClient error, peer Identity) { //nolint:staticcheck // one per side
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	deadline := time.Now().Add(time.Minute)
	result := make(chan error, 1)
	var id Identity
	go func() {
		raw, err := l.Accept()
		if err != nil {
			result <- err
			return
		}
		defer raw.Close()
		raw.SetDeadline(deadline)
		if server == nil { // a server without TLS sends plain text
			io.WriteString(raw, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_, err := io.ReadFull(raw, make([]byte, 1))
			result <- err
			return
		}
		c := tls.Server(raw, server)
		if err := c.Handshake(); err != nil {
			result <- err
			return
		}
		state := c.ConnectionState()
		id, err = PeerIdentity(&state)
		c.Write([]byte("x"))
		result <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.SetDeadline(deadline)
	if client == nil {
		io.WriteString(raw, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		return <-result, nil, id
	}
	c := tls.Client(raw, client)
	_, atClient = io.ReadFull(c, make([]byte, 1))
	raw.Close()
	return <-result, atClient, id
}

func configs(t *testing.T, k Key, id Identity, allowed ...Role) (server, client *tls.Config) {
	t.Helper()
	s, c, err := k.TLS(id, allowed...)
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func TestMutualTLS(t *testing.T) {
	k := NewKey()
	server, _ := configs(t, k, Identity{RoleNode, "n1"}, RoleNode, RoleCoordinator)
	_, client := configs(t, k, Identity{RoleCoordinator, "c-1.x"}, RoleNode)
	atServer, atClient, peer := shake(t, server, client)
	if atServer != nil || atClient != nil {
		t.Fatalf("%v, %v", atServer, atClient)
	}
	if want := (Identity{RoleCoordinator, "c-1.x"}); peer != want || peer.String() != "shoal://coordinator/c-1.x" {
		t.Errorf("peer %v, want %v", peer, want)
	}
	client.MaxVersion, client.MinVersion = tls.VersionTLS12, tls.VersionTLS12
	if atServer, _, _ := shake(t, server, client); atServer == nil {
		t.Error("TLS 1.2 was accepted")
	}
}

func TestStrangersAreRefused(t *testing.T) {
	k, other := NewKey(), NewKey()
	server, _ := configs(t, k, Identity{RoleNode, "n1"}, RoleNode)
	_, sameKey := configs(t, k, Identity{RoleNode, "n2"}, RoleNode)
	_, otherKey := configs(t, other, Identity{RoleNode, "n2"}, RoleNode)
	_, clientRole := configs(t, k, Identity{RoleClient, "c"}, RoleNode)
	_, wantsCoordinator := configs(t, k, Identity{RoleNode, "n2"}, RoleCoordinator)
	trusting := otherKey.Clone()
	trusting.VerifyConnection = nil
	nameless := sameKey.Clone()
	nameless.GetClientCertificate = nil

	for name, c := range map[string]struct {
		server, client     *tls.Config
		atServer, atClient error
	}{
		"another key, client sees it":   {server, otherKey, nil, ErrWrongKey},
		"another key, server sees it":   {server, trusting, ErrWrongKey, ErrRefused},
		"role, server sees it":          {server, clientRole, ErrRole, ErrRefused},
		"role, client sees it":          {server, wantsCoordinator, nil, ErrRole},
		"client without a certificate":  {server, nameless, nil, ErrRefused},
		"expired, server sees it":       {server, issued(t, k, "n2", -48*time.Hour, -24*time.Hour), ErrExpired, ErrRefused},
		"not yet valid, server sees it": {server, issued(t, k, "n2", 24*time.Hour, 48*time.Hour), ErrExpired, ErrRefused},
		"plaintext client":              {server, nil, ErrPlaintext, nil},
		"plaintext server":              {nil, sameKey, nil, ErrPlaintext},
	} {
		t.Run(name, func(t *testing.T) {
			atServer, atClient, _ := shake(t, c.server, c.client)
			atServer, atClient = Explain(atServer), Explain(atClient)
			t.Logf("server: %v", atServer)
			t.Logf("client: %v", atClient)
			if c.atServer != nil && !errors.Is(atServer, c.atServer) || c.atClient != nil && !errors.Is(atClient, c.atClient) {
				t.Errorf("want %v and %v", c.atServer, c.atClient)
			}
		})
	}
}

// issued returns a client configuration whose certificate has the given dates.
func issued(t *testing.T, k Key, id string, from, until time.Duration) *tls.Config {
	t.Helper()
	ca, err := k.authority()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.issue(Identity{RoleNode, id}, time.Now().Add(from), time.Now().Add(until))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}}
}

// A process that runs for weeks presents a current certificate.
func TestCertificateIsRenewed(t *testing.T) {
	now := time.Now()
	i := &issuer{key: NewKey(), id: Identity{RoleNode, "n"}, now: func() time.Time { return now }}
	first, err := i.certificate()
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(certLife/2 - time.Minute)
	if again, _ := i.certificate(); again != first {
		t.Error("renewed too early")
	}
	now = now.Add(2 * time.Minute)
	second, _ := i.certificate()
	if second == first || !second.Leaf.NotAfter.After(now.Add(certLife-time.Minute)) {
		t.Error("not renewed")
	}
	now = now.Add(-30 * time.Hour) // the clock was set back to before the certificate's start
	if third, _ := i.certificate(); third.Leaf.NotBefore.After(now) {
		t.Error("not valid after the clock was set back")
	}
}

func TestAuthorityFollowsFromTheKey(t *testing.T) {
	k := NewKey()
	a, err := k.authority()
	if err != nil {
		t.Fatal(err)
	}
	b, err := k.authority()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.cert.Raw, b.cert.Raw) {
		t.Error("two authorities from one key")
	}
}

// Certificates with valid signatures but identities that Shoal never issues.
func TestStrangeIdentities(t *testing.T) {
	ca, err := NewKey().authority()
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range []string{"", "shoal://node/", "shoal://king/a", "shoal://node/a/b", "http://node/a", "shoal://node/a shoal://node/b",
		"shoal://u@node/a", "shoal://node/a?x=1", "shoal://node:1/a", "shoal://node/" + strings.Repeat("a", 65), "shoal:node/a"} {
		var uris []*url.URL
		for _, n := range strings.Fields(names) {
			u, err := url.Parse(n)
			if err != nil {
				t.Fatal(err)
			}
			uris = append(uris, u)
		}
		pub, _, _ := ed25519.GenerateKey(rand.Reader)
		der, err := x509.CreateCertificate(rand.Reader,
			&x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), URIs: uris}, ca.cert, pub, ca.key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue // x509 itself refuses
		}
		if id, err := identityOf(c); !errors.Is(err, ErrIdentity) {
			t.Errorf("%q: %v, %v", names, id, err)
		}
	}
	if _, _, err := (Key{}).TLS(Identity{RoleNode, "a"}); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key: %v", err)
	}
	for _, id := range []Identity{{}, {"king", "a"}, {RoleNode, ""}, {RoleNode, "a b"}, {RoleNode, "a/b"}} {
		if _, _, err := NewKey().TLS(id); err == nil {
			t.Errorf("%+v was issued", id)
		}
	}
}
