// Package tokenizer turns text into token ids and back, for models that ship a
// Hugging Face tokenizer.json with a BPE model: the byte-level family (GPT-2,
// Llama 3, Qwen, DeepSeek) and the SentencePiece-style family (Llama 2,
// Mistral, Gemma).
//
// The path of a text, the same as in the Hugging Face tokenizers library:
//
//	text -> added tokens cut out -> normalizer -> normalized added tokens cut out
//	     -> pre-tokenizer (pieces) -> BPE merges (ids) -> post-processor (BOS, EOS)
//
// and back: ids -> token strings -> decoder stages -> text. Every component of
// a file is either done exactly or refused by name when the file is loaded;
// nothing is skipped silently.
//
// Two deliberate differences from the library. A run of byte tokens
// (<0xE6><0x97>...) that is not valid UTF-8 as a whole keeps its valid
// characters, where the library replaces the whole run: otherwise no stream
// could emit a byte token before the run has ended, and a streamed answer would
// differ from a whole one. And token ids outside the vocabulary of the file
// (merges, added tokens, templates) are refused when loading, not later.
//
// A Tokenizer is immutable after loading and safe for concurrent use; a Stream
// belongs to one goroutine.
package tokenizer
