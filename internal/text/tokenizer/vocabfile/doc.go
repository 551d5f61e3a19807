// Package vocabfile converts vocabularies of other forms to the files of a Hugging Face folder, so
// that package tokenizer has one parser with one set of limits. It also has the errors and limits
// of all tokenizer files.
package vocabfile
