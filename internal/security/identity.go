package security

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
)

// Role determines which requests a process may send and receive.
type Role string

const (
	RoleNode        Role = "node"        // owns weights and caches
	RoleCoordinator Role = "coordinator" // API, batcher, placement
	RoleClient      Role = "client"      // command line tools that only query
)

func Roles() []Role { return []Role{RoleNode, RoleCoordinator, RoleClient} }

// Identity is the subject of a certificate: shoal://<role>/<id>.
type Identity struct {
	Role Role
	ID   string
}

const scheme = "shoal"

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ErrIdentity is returned for a certificate without a usable identity.
var ErrIdentity = errors.New("security: certificate without a shoal identity")

// Validate checks role and id: 1 to 64 letters, digits, '.', '_' and '-'.
func (i Identity) Validate() error {
	if !slices.Contains(Roles(), i.Role) {
		return fmt.Errorf("security: unknown role %q; known are %v", i.Role, Roles())
	}
	if !idPattern.MatchString(i.ID) {
		return fmt.Errorf("security: node id %q must be 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit", i.ID)
	}
	return nil
}

// URI returns the form used in certificates.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: scheme, Host: string(i.Role), Path: "/" + i.ID}
}

func (i Identity) String() string { return i.URI().String() }

// PeerIdentity returns the identity in the peer certificate of an established connection. The
// connection must use a configuration of Key.TLS, which has verified it.
func PeerIdentity(s *tls.ConnectionState) (Identity, error) {
	if len(s.PeerCertificates) == 0 {
		return Identity{}, fmt.Errorf("%w: the peer sent none", ErrIdentity)
	}
	return identityOf(s.PeerCertificates[0])
}

func identityOf(c *x509.Certificate) (Identity, error) {
	if len(c.URIs) != 1 {
		return Identity{}, fmt.Errorf("%w: %d URI names, want 1", ErrIdentity, len(c.URIs))
	}
	u := c.URIs[0]
	if u.Scheme != scheme || len(u.Path) < 2 {
		return Identity{}, fmt.Errorf("%w: it names %q", ErrIdentity, u.Redacted())
	}
	id := Identity{Role: Role(u.Host), ID: u.Path[1:]}
	if err := id.Validate(); err != nil || *u != *id.URI() {
		return Identity{}, fmt.Errorf("%w: it names %q", ErrIdentity, u.Redacted())
	}
	return id, nil
}
