// Package security turns one shared secret, the cluster key, into everything
// that keeps strangers out of a cluster: the gossip key, a certificate
// authority, short-lived certificates that name role and node, and passwords
// for the bus.
//
// A cluster has one secret because a secret per node has to be handed out by
// somebody, and a cluster that its owner starts with one command has nobody.
// The price: whoever holds the key can become any node. Roles in certificates
// therefore guard against mistakes (a client that dials a node's port, a node
// of another cluster), not against a thief of the key.
//
// Nothing here prints the key except Key.Text.
package security
