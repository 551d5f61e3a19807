// Package engine is the contract between the server and the cluster: an [Engine] turns tokens
// into tokens, a [Tokenizer] text into tokens and back, a [ChatTemplate] messages into text.
package engine
