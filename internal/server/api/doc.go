// Package api puts the server together: HTTP, generation and the protocols, in front of one
// engine. It keeps the names by which the cluster and the jobs use the packages below it.
// Its tests drive the whole server over HTTP.
package api
