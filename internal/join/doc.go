// Package join lets a machine into a cluster with a short-lived token instead of a copy of the
// cluster key.
//
// The first machine of a cluster runs a [Server] and makes a token ([Tokens.Create]). A token
// carries a secret and the fingerprint of the server's certificate. The other machine connects
// over TLS, compares the certificate with the fingerprint, and signs the connection with a key
// that it derives from the secret ([Exchange]). The server then sends the [Grant]: the cluster
// key and the addresses of the cluster. The other machine keeps it ([SaveGrant]), so that it
// needs no token at its next start.
//
// On a local network the server is found by multicast DNS ([Advertise], [Discover]).
//
// docs/decisions/join-tokens.md has the design and its threats.
package join
