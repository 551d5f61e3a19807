package security

import "crypto/tls"

// BusTLS is the TLS of a NATS mesh: every server dials and is dialled, so one
// configuration carries both halves. VerifyConnection, which checks the peer's
// certificate against the cluster key, is the same on both sides.
func (k Key) BusTLS(id Identity) (routes, clients *tls.Config, err error) {
	server, client, err := k.TLS(id, RoleNode, RoleCoordinator)
	if err != nil {
		return nil, nil, err
	}
	routes = server.Clone()
	routes.GetClientCertificate = client.GetClientCertificate
	routes.InsecureSkipVerify = true // of host names only, see Key.TLS
	return routes, server.Clone(), nil
}

// BusPasswords are those of a role under every key that is accepted.
func (k Key) BusPasswords(role Role) func() []string {
	return func() (out []string) {
		for _, k := range k.Keys() {
			out = append(out, k.BusPassword(role))
		}
		return out
	}
}
