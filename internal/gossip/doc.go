// Package gossip tells who is in the cluster. It wraps memberlist (SWIM) and
// takes its traps away: metadata over 512 bytes (a panic there), callbacks that
// must not block, leaves that look like failures, members that restart under
// their old name, and joins in parallel that take half a minute to meet.
//
// What it says is a hint. Nothing here carries authority: whoever holds the
// cluster key can announce anything, and on a starved machine a living member
// is called failed and comes back. Identity is proven by package rpc's
// certificates, decisions are the coordinator's, and stale ones are fenced by
// epochs.
//
// memberlist -> callbacks (queue.go: never block) -> one goroutine -> view.go
// (pure: what changed?) -> Config.OnEvent, one call at a time, in order.
package gossip
