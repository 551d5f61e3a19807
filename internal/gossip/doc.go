// Package gossip keeps the list of cluster members. It wraps memberlist (SWIM) and
// avoids its pitfalls: metadata over 512 bytes (a panic there), callbacks that must
// not block, leaves that look like failures, members that restart under their old
// name, and concurrent joins that take half a minute to find each other.
//
// Its results are hints without authority. Any holder of the cluster key can announce
// anything, and on an overloaded machine a live member may be reported as failed and
// later return. Package rpc's certificates prove identity, the coordinator decides, and
// epochs fence outdated decisions.
//
// memberlist -> callbacks (queue.go: never block) -> one goroutine -> view.go
// (pure: what changed?) -> Config.OnEvent, one call at a time, in order.
package gossip
