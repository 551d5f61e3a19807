// Package apierr holds errors as clients of the API read them: a status, a type, a parameter,
// a code and a message. It also holds the typed errors that an engine may return, and maps any
// error to the one that the client gets.
package apierr
