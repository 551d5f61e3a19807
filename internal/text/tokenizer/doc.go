// Package tokenizer converts text to token ids and back, for models with a Hugging Face
// tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen, DeepSeek), SentencePiece-style BPE
// (Llama 2, Mistral, Gemma), WordPiece (BERT) and Unigram (XLM-RoBERTa, T5). Package vocabfile
// converts other files to that form.
//
// A text passes through the same steps as in the Hugging Face tokenizers library:
//
//	text -> added tokens cut out -> normalizer -> normalized added tokens cut out
//	     -> pre-tokenizer (pieces) -> model (ids) -> post-processor (BOS, EOS)
//
// and back: ids -> token strings -> decoder stages -> text. Every component of a file is
// either implemented exactly or refused by name at load. Nothing is skipped silently.
//
// There are two deliberate differences from the library. First, if a run of byte tokens
// (<0xE6><0x97>...) is not valid UTF-8 as a whole, its valid characters are kept, while
// the library replaces the whole run. Otherwise no stream could emit a byte token before
// the end of the run, or streamed and whole answers would differ. Second, token ids
// outside the vocabulary of the file (merges, added tokens, templates) are refused at
// load, not later.
//
// A Tokenizer is immutable after loading and safe for concurrent use. A Stream belongs to
// one goroutine.
package tokenizer
