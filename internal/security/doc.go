// Package security derives all credentials of a cluster from one shared secret, the
// cluster key: the gossip key, a certificate authority, short-lived certificates with
// role and node id, and passwords for the bus.
//
// A cluster has one secret because secrets per node would need a service to distribute
// them, and a cluster can be started with one command. The price is that a holder of
// the key can impersonate any node. Roles in certificates therefore protect against
// mistakes (a client that dials a node's port, a node of another cluster), not against
// a stolen key.
//
// Only Key.Text prints the key.
package security
