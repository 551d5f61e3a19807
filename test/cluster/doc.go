// Package cluster has the end-to-end tests: the real binary, real processes, real
// sockets. They build cmd/shoal once, start local clusters with it, and use only HTTP and
// signals.
//
//	go test ./test/cluster                     the default: about three minutes on two cores
//	go test -short ./test/cluster              fewer node counts
//	SHOAL_E2E=full go test -timeout 60m ...    every node count, mapping, chunk and batch
//	SHOAL_CHAOS=5m go test -run Jobs ...       1000 jobs while everything is killed (make chaos-jobs)
//	SHOAL_SOAK=2m go test -run Soak ...        many clients for two minutes (make soak)
//	SHOAL_SPECULATE=suffix:6 go test ...       with drafts in every stream, at any cost
//
// Every process that a test starts ends with the test, including frozen ones. A process
// that is still running at the end of the test binary fails it.
package cluster
