package cluster

import (
	"crypto/tls"

	"shoal/security"
)

// busTLS is the TLS of the NATS mesh: every server dials and is dialled, so one
// configuration carries both halves. VerifyConnection, which checks the peer's
// certificate against the cluster key, is the same on both sides.
func busTLS(key security.Key, id security.Identity) (routes, clients *tls.Config, err error) {
	server, client, err := key.TLS(id, security.RoleNode, security.RoleCoordinator)
	if err != nil {
		return nil, nil, err
	}
	routes = server.Clone()
	routes.GetClientCertificate = client.GetClientCertificate
	routes.InsecureSkipVerify = true // of host names only, see security.Key.TLS
	return routes, server.Clone(), nil
}

// passwords are those of a role under every key that is accepted.
func passwords(key security.Key, role security.Role) func() []string {
	return func() (out []string) {
		for _, k := range key.Keys() {
			out = append(out, k.BusPassword(role))
		}
		return out
	}
}

func gossipKeys(keys []security.Key) (out [][]byte) {
	for _, k := range keys {
		out = append(out, k.Gossip())
	}
	return out
}
