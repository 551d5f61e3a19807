// Package ollama serves the part of Ollama's API that its clients need to chat. A request is
// decoded as a chat, or as a completion if it is raw. A stream is one JSON object per line.
package ollama
