// Package anthropic serves Anthropic's Messages. A request is decoded as a chat under other
// names; answers, streams and errors have Anthropic's form.
package anthropic
