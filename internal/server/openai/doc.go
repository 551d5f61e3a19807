// Package openai serves OpenAI's protocol with vLLM's extensions: chats, completions, responses,
// models, tokens, and Shoal's fixed contexts.
package openai
