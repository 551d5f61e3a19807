// Package cluster holds the end-to-end tests: the real binary, real processes,
// real sockets. They build cmd/shoal once, start local clusters with it, and
// speak HTTP and signals only.
//
//	go test ./test/cluster                     the default: three minutes or so on two cores
//	go test -short ./test/cluster              fewer node counts
//	SHOAL_E2E=full go test -timeout 60m ...    every node count, mapping, chunk and batch
//	SHOAL_CHAOS=5m go test -run Jobs ...       1000 jobs while everything is killed (make chaos-jobs)
//	SHOAL_SOAK=2m go test -run Soak ...        many clients for two minutes (make soak)
//	SHOAL_SPECULATE=suffix:6 go test ...       with drafts in every stream, whatever they cost
//
// Every process that a test starts ends with it, also a frozen one; what still
// runs at the end of the test binary fails it.
package cluster
