package security

import "crypto/tls"

// BusTLS returns the TLS configurations of a NATS mesh. Every server dials and accepts connections,
// so one configuration has both sides. VerifyConnection, which checks the peer's certificate
// against the cluster key, is the same for both.
func (k Key) BusTLS(id Identity) (routes, clients *tls.Config, err error) {
	server, client, err := k.TLS(id, RoleNode, RoleCoordinator)
	if err != nil {
		return nil, nil, err
	}
	routes = server.Clone()
	routes.GetClientCertificate = client.GetClientCertificate
	routes.InsecureSkipVerify = true // skips host names only, see Key.TLS
	return routes, server.Clone(), nil
}

// BusPasswords returns a function that lists the passwords of a role under every accepted key.
func (k Key) BusPasswords(role Role) func() []string {
	return func() (out []string) {
		for _, k := range k.Keys() {
			out = append(out, k.BusPassword(role))
		}
		return out
	}
}
