// Package answers holds a test that records what the cluster answers, token ids and the bits of their log
// probabilities, for every architecture, cache policy, type of weights and type of cache,
// and compares such a record with what this tree answers. It is the net under changes
// that must not change a bit.
//
//	go test ./test/answers                             a part of it, in a minute
//	go test ./test/answers -v -only .                  compare with the record of the tree (make answers)
//	go test ./test/answers -v -only '^llama '          a part of it, by the first words of the keys
//	go test ./test/answers -v -only . -record FILE     write a record
//	go test ./test/answers -v -only . -compare FILE    compare with another one
//
// The bits of an answer depend on the model, the types and the request alone, so one
// record holds for every processor and every set of kernels (SHOAL_CPU), and an answer is
// written down once for all the ways to cut it: nodes, mapping, shares, chunks, threads,
// the other sequences of the batch. Each is asked in several of them, and all must agree.
//
// It knows the cluster by cluster.New and api.Engine only, and policies by their text, so
// that with other import paths it builds on older commits. It runs in one process, without a network. An answer that the record lacks (a new policy or
// architecture) is listed, and is a failure with the record of the tree alone; one that only the record has is one. Files are
// looked for in test/answers, where go test runs.
package answers
