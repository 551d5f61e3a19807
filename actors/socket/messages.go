package socket

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Commands of a socket. Reply is called from any goroutine, and must not block. It is called once, except after a panic
// of the socket: then its first call counts.
type (
	Load struct {
		Request *proto.LoadRequest
		Reply   func(*proto.LoadReply, error)
	}
	Join struct {
		Request *proto.JoinRequest
		Reply   func(*proto.JoinReply, error)
	}
	Step struct {
		Request *proto.StepRequest
		Reply   func(*proto.StepReply, error)
		Times   func(step.Times) // if not nil, called before Reply with the times of the step
	}
	Retire struct {
		Request *proto.RetireRequest
		Reply   func(error)
	}
	// Release frees sequences between steps.
	Release struct {
		Request *proto.ReleaseRequest
		Reply   func(*proto.ReleaseReply, error)
	}
	// Between runs a job on the executor between two steps of an epoch, while no other work uses
	// the epoch's caches.
	Between struct {
		Epoch uint32
		Do    func(*step.Job) error
		Reply func(error)
	}
	// Prefix looks up or reads blocks of the prefix cache in files.
	Prefix struct {
		Request *proto.PrefixRequest
		Reply   func(*proto.PrefixReply, error)
	}
	// Adapter loads and drops LoRA adapters, or stores a part of one.
	Adapter struct {
		Request *proto.AdapterRequest
		Reply   func(*proto.AdapterReply, error)
	}
	// Take fetches the cache of a prompt from its owner in the prefill group, or that of an idle session
	// from a file.
	Take struct {
		Request *proto.TakeRequest
		Reply   func(*proto.TakeReply, error)
	}
	// Saved finds, writes or removes the cache of an idle session in a file.
	Saved struct {
		Request *proto.SavedRequest
		Reply   func(*proto.SavedReply, error)
	}
	// Lend reads rows of a cache for a socket of the decode group.
	Lend struct {
		Request *proto.RowsRequest
		Reply   func(*proto.RowsReply, error)
	}
	Status struct{ Reply func(*proto.SocketStatus) }
)

// Events that the socket's jobs send to their actor.
type (
	loaded struct {
		number  uint32
		epoch   *step.Epoch
		err     error
		whole   map[uint64]bool // sequences of earlier epochs whose caches the socket has
		inFiles map[uint64]int  // blocks of each sequence's cache that are in files
		took    time.Duration
		reply   func(*proto.LoadReply, error)
	}
	joined struct {
		number uint32
		group  *exchanges
		err    error
		took   time.Duration
		reply  func(*proto.JoinReply, error)
	}
	stageDone struct {
		step *flight
		err  error
	}
	jobDone struct {
		number uint32
		made   map[uint64]*machine.Kept
		err    error
		reply  func(error)
	}
	taken struct {
		request *proto.TakeRequest
		bytes   int64
		took    time.Duration
		err     error
		reply   func(*proto.TakeReply, error)
	}
	adapterLoaded struct {
		number  uint32
		id      lora.ID
		adapter *lowrank.Adapter // nil after an error, or if the files are missing
		err     error
		reply   func(*proto.AdapterReply, error)
	}
	groupFailed struct {
		number uint32
		err    error
	}
)
