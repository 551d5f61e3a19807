// Package api puts the server together: HTTP, generation and the protocols, in front of one
// engine. Its tests drive the whole server over HTTP.
package api
