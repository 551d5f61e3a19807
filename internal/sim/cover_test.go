package sim

import (
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/collective"
)

// Kind is a situation that the schedules must exercise.
type Kind uint8

const (
	LostMessage Kind = iota
	CutMessage
	RepeatedMessage
	LateMessage
	Retired
	ReleaseSent
	ReleaseRefused
	StaleAtSocket
	StaleAnswer
	StaleResult
	StaleAtCollective
	DuplicateAtCollective
	Replaced
	BrokenStep
	Suspected
	Cancelled
	Preempted
	Resumed
	ResumedReplica
	Replicated
	UndoneToken
	Warm
	BlockTwice
	BlockOfAnswer
	BlockBrought
	AnswerGivenUp
	BlockWritten
	BlockRead
	FileMissed
	AcceptedDraft
	MorePasses
	Finished
	GivenUp
	Frozen
	Hung
	Restarted
	PartitionedSides
	PartitionedDirection
	PartitionedPair
	FalseAlarm
	Dragged
	Reopened
	Replayed
	KilledIdle // some time
	KilledLoading
	KilledJoining
	KilledPrefill
	KilledDecode
	KilledCollective
	KilledHandover
	KilledReply
	KilledCoordinator
	KilledBeforeEmit
	KilledBeforeFinish
	KilledBeforeStart
	KilledBeforeWrite
	KilledBeforeAck
	FrozenBeforeWrite
	TakenOver
	LeftOut
	DeposedHolder
	StoreLost
	StoreLate
	StaleWrite
	Jammed
	Drought
	FencedHung
	FencedSlow
	StragglerNamed
	StragglerOver
	LoadGivenUp
	ProbedInVain
	Back
	Blackout
	StoreDown
	StoreFull
	LostWrite
	TornRecord
	LostAck
	FoundAfterAll
	AcceptedBefore
	JobTakenOver
	JobResumed
	JobRetried
	DeadLetter
	Reattached
	kinds

	NoCrash = kinds
)

var kindNames = [kinds]string{"messages lost", "messages cut", "messages repeated", "messages late",
	"nodes retired", "releases sent", "releases refused",
	"stale at a socket", "stale answers", "stale results", "stale at a collective", "duplicates at a collective",
	"placements withdrawn", "steps broken",
	"suspects", "cancellations", "preemptions", "caches that outlived an epoch", "... as replicas", "replicas made",
	"tokens undone in them", "blocks of prompts found", "... read twice at once", "... that answers fill",
	"... that came from their owners", "answers of which not all blocks came", "blocks written to files",
	"... read", "... lost or damaged", "drafts accepted", "passes after the first of a step", "requests finished",
	"requests given up", "freezes", "hangs", "restarts", "partitions in two", "one-way partitions",
	"pairs cut", "false alarms", "slow nodes", "sequences rebuilt", "tokens replayed", "kills at any time",
	"kills in loading", "kills in joining", "kills in prefill", "kills in decode",
	"kills in collectives", "kills in hand-overs", "kills before replies",
	"kills of the coordinator", "... before tokens go out", "... before an end goes out",
	"... before a step starts", "... before a record is written", "... before it is known to be",
	"coordinators frozen before a record is written", "take-overs", "nodes left out",
	"holders deposed", "requests of the lease lost", "... late", "writes of a deposed coordinator refused",
	"hung executors", "standstills of all", "nodes fenced for hanging", "... for being slow", "stragglers named", "... that kept up again",
	"loads of which nobody moved", "probes in vain", "fenced nodes that work again",
	"power losses of the store", "requests to it then", "... that it refused, full", "writes lost",
	"records torn", "acknowledgements lost", "records found after all",
	"jobs accepted twice", "jobs taken over", "... with tokens", "jobs tried again", "dead letters", "streams taken up at N > 0"}

func (k Kind) String() string { return kindNames[k] }

// Cover counts situations.
type Cover [kinds]int

func (c *Cover) add(o *Cover) {
	for k := range c {
		c[k] += o[k]
	}
}

// Missing lists situations that never occurred.
func (c *Cover) Missing() (none []Kind) {
	for k := range kinds {
		if c[k] == 0 {
			none = append(none, k)
		}
	}
	return none
}

func (c *Cover) String() string {
	var b strings.Builder
	for k := range kinds {
		fmt.Fprintf(&b, "%28s %d\n", k, c[k])
	}
	return b.String()
}

func (c *Cover) kill(during string) {
	for h := range hooks {
		if h.String() == during {
			c[KilledLoading+Kind(h)]++
			return
		}
	}
	c[KilledIdle]++
}

func (c *Cover) dropped(why collective.Drop, n uint64) {
	switch why {
	case collective.DropEpoch, collective.DropIncarnation:
		c[StaleAtCollective] += int(n)
	case collective.DropDuplicate:
		c[DuplicateAtCollective] += int(n)
	}
}
