// Package answers has a test for changes that must not change a bit of an answer. It records the
// answers of the cluster, as token ids and the bits of their log probabilities, for every architecture,
// cache policy, weight type and cache type. It compares such a record with the answers of this tree.
//
//	go test ./test/answers                             a part of it, in a minute
//	go test ./test/answers -v -only .                  compare with the record of the tree (make answers)
//	go test ./test/answers -v -only '^llama '          a part of it, by the first words of the keys
//	go test ./test/answers -v -only . -record FILE     write a record
//	go test ./test/answers -v -only . -compare FILE    compare with another one
//
// The bits of an answer depend only on the model, the types and the request. So one record
// holds for every processor and every set of kernels (SHOAL_CPU), and an answer is recorded
// once for all configurations: nodes, mapping, shares, chunks, threads, and the other
// sequences of the batch. Each answer is computed in several of them, and all must agree.
//
// The test uses the cluster only through cluster.New and engine.Engine, and policies by their
// text, so with other import paths it builds on older commits. It runs in one process,
// without a network. An answer that the record lacks (of a new policy or architecture) is
// listed, and fails the test only with the record of the tree. An answer that only the
// record has is a failure. Files are relative to test/answers, where go test runs.
package answers
