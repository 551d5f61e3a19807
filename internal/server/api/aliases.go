package api

import "github.com/shoal-llm/shoal/client/wire"

// Types that clients read, under the names by which the cluster and the jobs use them.
type (
	ClusterState     = wire.ClusterState
	PrefixCacheState = wire.PrefixCacheState
	PrefixDiskState  = wire.PrefixDiskState
	DraftsState      = wire.DraftsState
	StoreMember      = wire.StoreMember
	StoreState       = wire.StoreState
	NodeState        = wire.NodeState
	SequenceState    = wire.SequenceState
	RecoveryState    = wire.RecoveryState
	Durations        = wire.Durations
	ClusterEvent     = wire.ClusterEvent
	Cost             = wire.Cost
	Sample           = wire.Sample
	Job              = wire.Job
	JobError         = wire.JobError
	JobList          = wire.JobList
	JobEvent         = wire.JobEvent
	JobEnd           = wire.JobEnd
)

// Kinds of events; see [wire.ClusterEvent].
const (
	EventStarted   = wire.EventStarted
	EventTakeover  = wire.EventTakeover
	EventServing   = wire.EventServing
	EventNodeUp    = wire.EventNodeUp
	EventWorks     = wire.EventWorks
	EventUndrained = wire.EventUndrained
	EventRefused   = wire.EventRefused
)
