// Package gossip keeps the list of cluster members. It wraps memberlist (SWIM) and
// avoids its pitfalls. Metadata over 512 bytes makes memberlist panic, and its callbacks
// must not block. Leaves look like failures, members restart under their old name, and
// concurrent joins take half a minute to find each other.
//
// Its results are hints without authority. Any holder of the cluster key can announce
// anything, and on an overloaded machine a live member may be reported as failed and
// later return. Package rpc's certificates prove identity, the coordinator decides, and
// epochs fence outdated decisions.
//
// memberlist -> callbacks (queue.go: never block) -> one goroutine -> view.go
// (pure: reports as events) -> Config.OnEvent, one call at a time, in order.
package gossip
