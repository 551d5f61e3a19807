// Package hub fetches models and finds those that are on disk.
//
// A model comes from a hub that speaks Hugging Face's protocol, from a registry of
// Ollama (OCI), from an http(s) URL, or from a folder. Files of a hub are kept in the
// cache of Python's huggingface_hub, so both programs use each other's downloads.
//
// A file gets its final name only after its hash was checked, so a name in the cache
// is a promise of content. A download that was killed continues where it stopped.
package hub
