// Package servertest has a tokenizer, a chat template and an engine for tests of the server.
package servertest
