package machine

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Machine decides for one socket which messages count, which changes of caches a plan requires, and
// which caches outlive an epoch. It takes values and returns Effects. The actor performs them in order,
// and before those of a later message. Transcripts are in testdata.
//
// A sequence has up to three caches: the prompt, which all sockets read, divided by KV heads; the
// cache that decode reads, whole on its owner; and a replica of that on another socket. The rows
// that decode writes are committed only when a later plan has the number of tokens that count. So a
// cache matches the coordinator's record after any end of a step, and can be used in the next epoch.
type Machine struct {
	State
	limits      Limits
	coordinator uint64 // incarnation of the coordinator that these sequences belong to
	seqs        map[uint64]*Sequence
	kept        map[uint64]*Kept // caches of earlier epochs that no plan has resumed
	blocks      map[uint64]int   // of the prefix cache: the number of each block in its text
	sums        map[uint64]bool  // the blocks with attention sums
	adapters    map[lora.ID]bool // LoRA adapters in memory
	adaptNumber uint64           // newest decision about them
	snapshots   map[uint64]bool  // the blocks with snapshots of recurrent states
	taking      taking
	flight      []uint64 // sequences of the step in flight
	busy        bool     // a job between steps is running
}

// Limits are the bounds for the plans of an epoch.
type Limits struct {
	Rank, Ranks int
	Vocab       int
	Positions   int             // the longest sequence
	Rows        int             // the most rows of a step, and the most open sequences
	Layout      tensor.KVLayout // of the cache
	Layers      int             // with a cache of their own
	Begins      []int           // see kvcache.Geometry
	Later       int             // see kvcache.Geometry
	Headless    bool            // the model has no output head: it only makes vectors
	Whole       bool            // attention is not causal: one run reads the whole text
	Across      bool            // layers read each other's caches
	Recurrent   bool            // layers have recurrent states
	Layered     bool            // prompts can be read layer by layer
	Parse       func(spec string) (*kvcache.Policy, error)
}

// Sequence is the machine's record of a sequence, the same on every rank.
type Sequence struct {
	Owner        int // rank
	Replica      int // rank, or none
	Prompt       int // tokens that prefill reads
	Policy       *kvcache.Policy
	Adapter      lora.ID
	unloaded     bool // the adapter has left the memory since the sequence was opened: it has no further rows
	Pools        bool // it ends with a vector of its prompt, and has no decode rows
	Logprobs     int  // reported for each sampled token, besides its own
	Indexed      int  // pieces of its clustering that are done
	piecesBefore int  // pieces before the hand-over
	pieces       int  // all pieces
	Read         int  // tokens that count: of the prompt, then of the cache
	Staged       int  // tokens of the last decode rows: the next plan has the number of them that count
	HandedOver   bool // the owner has the whole cache
	Replicated   bool // the replica is complete
	copies       bool // the owner has memory for a copy of its recurrent states
	copied       int  // tokens of that copy, or 0 if there is none yet
	oneToken     bool // it decodes one token a step
	swept        swept
	inFlight     bool   // the step in flight has rows of it
	lastStep     uint64 // last step that named it
}

// Kept is a cache that outlived its epoch on this socket.
type Kept struct {
	Prompt, Tokens, Staged int
	Policy                 *kvcache.Policy
	Adapter                lora.ID
	Layout                 tensor.KVLayout
	Replica                bool
}

// NewMachine returns the machine of a socket that has just started.
func NewMachine() *Machine {
	return &Machine{State: State{Phase: Idle}, seqs: map[uint64]*Sequence{}, kept: map[uint64]*Kept{}, blocks: map[uint64]int{},
		sums: map[uint64]bool{}, snapshots: map[uint64]bool{}, adapters: map[lora.ID]bool{}, taking: taking{all: map[uint64]*Kept{}}}
}

// Load begins an epoch of a coordinator. It drops the caches of the last epoch, except those of
// sequences that decode, if they are of the same coordinator.
func (m *Machine) Load(epoch uint32, coordinator uint64, l Limits) ([]Effect, error) {
	if err := m.State.Load(epoch); err != nil {
		return nil, err
	}
	effects := m.leave(m.coordinator == coordinator)
	m.coordinator, m.limits = coordinator, l
	return effects, nil
}

// Retire ends an epoch. It returns false when there is nothing to tear down.
func (m *Machine) Retire(epoch uint32) ([]Effect, bool) {
	if !m.State.Retire(epoch) {
		return nil, false
	}
	return m.leave(false), true
}

// Stop ends the machine.
func (m *Machine) Stop() []Effect {
	m.State.Stop()
	return m.leave(false)
}

// leave drops the caches of an epoch. With keep it keeps those that are complete on one socket.
func (m *Machine) leave(keep bool) (effects []Effect) {
	for _, id := range slices.Sorted(maps.Keys(m.seqs)) {
		q := m.seqs[id]
		own := q.Owner == m.limits.Rank && q.HandedOver
		if !keep || !own && !(q.Replica == m.limits.Rank && q.Replicated) {
			effects = append(effects, Effect{Do: DoRelease, Seq: id})
			continue
		}
		m.kept[id] = &Kept{Prompt: q.Prompt, Tokens: q.Read, Staged: q.Staged, Policy: q.Policy, Adapter: q.Adapter,
			Layout: m.limits.Layout, Replica: !own}
	}
	for _, id := range slices.Sorted(maps.Keys(m.taking.all)) {
		effects = append(effects, Effect{Do: DoRelease, Seq: id})
	}
	m.taking = taking{all: map[uint64]*Kept{}}
	clear(m.seqs)
	clear(m.adapters)
	m.adaptNumber = 0
	// The blocks of the prefix cache hold the heads of this epoch's placement.
	effects = m.evict(effects, slices.Sorted(maps.Keys(m.blocks)))
	m.flight, m.busy = nil, false
	if !keep {
		for _, id := range slices.Sorted(maps.Keys(m.kept)) {
			effects = append(effects, Effect{Do: DoRelease, Seq: id})
		}
		clear(m.kept)
	}
	return effects
}

// Kept returns the sequences whose caches outlived their epochs, by the plans that this socket has begun.
func (m *Machine) Kept() map[uint64]bool {
	ids := make(map[uint64]bool, len(m.kept))
	for id := range m.kept {
		ids[id] = true
	}
	return ids
}

// Whole drops the records of all other caches that outlived their epochs. A step that failed early may not have made them.
func (m *Machine) Whole(seqs map[uint64]bool) {
	maps.DeleteFunc(m.kept, func(id uint64, _ *Kept) bool { return !seqs[id] })
}

// Held lists the caches on this socket that outlived their epochs.
func (m *Machine) Held() []*proto.Held {
	var list []*proto.Held
	for _, id := range slices.Sorted(maps.Keys(m.kept)) {
		k := m.kept[id]
		list = append(list, &proto.Held{Seq: id, Prompt: uint32(k.Prompt), Tokens: uint32(k.Tokens),
			Staged: uint32(k.Staged), Replica: k.Replica})
	}
	return list
}

// Release frees sequences, and blocks of the prefix cache, between steps.
func (m *Machine) Release(r *proto.ReleaseRequest) ([]Effect, error) {
	if err := m.between("release", r.Epoch); err != nil {
		return nil, err
	}
	keep, err := plan.DecodeKeep(r.Keep)
	if err != nil {
		return nil, err
	}
	if err := m.checkKeep(keep); err != nil {
		return nil, err
	}
	return m.evict(m.release(m.keep(nil, keep), r.Seqs), r.Evict), nil
}

// keep moves blocks of sequences that end to the prefix cache. A sequence that does not exist has
// left its blocks before.
func (m *Machine) keep(effects []Effect, keep []plan.Keep) []Effect {
	for _, k := range keep {
		if q := m.seqs[k.Seq]; q != nil {
			effects = m.countLast(effects, k.Seq, q, (k.From+len(k.Blocks))*tensor.BlockSlots)
		}
		for i, id := range k.Blocks {
			if id != 0 && m.seqs[k.Seq] != nil {
				m.blocks[id] = k.From + i
				f := Effect{Do: DoKeep, Seq: k.Seq, Tokens: m.blocks[id], Block: id}
				if len(k.Keys) > 0 {
					f.Keys = k.Keys[i : i+2]
				}
				effects = append(effects, f)
			}
		}
		if k.Snapshot != 0 && m.seqs[k.Seq] != nil {
			m.snapshots[k.Snapshot] = true
			effects = append(effects, Effect{Do: DoKeepStates, Seq: k.Seq, Tokens: k.From + len(k.Blocks) - 1, Block: k.Snapshot, Keys: k.Keys})
		}
	}
	return effects
}

// Restore names blocks of a text whose rows come from files, or from the owner of a sequence. It is
// possible between steps and during one. The request names the newest step at its decision: once a
// later step has begun, the plan of that step may have given the blocks up. The effects commit the last tokens of the
// sequence.
func (m *Machine) Restore(r *proto.PrefixRequest) ([]Effect, error) {
	if r.Epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping || m.busy || m.Step > r.Step {
		return nil, fmt.Errorf("%w: blocks to be read in epoch %d before step %d, at %d (%s), step %d", ErrStaleEpoch,
			r.Epoch, r.Step, m.Epoch, m.Phase, m.Step)
	}
	from, n := int(r.From), len(r.Blocks)
	switch {
	case len(r.Keys) != sha256.Size*(n+1):
		return nil, fmt.Errorf("socket: %d blocks of a text have %d bytes of keys, want %d", n, len(r.Keys), sha256.Size*(n+1))
	case from > m.limits.Positions || (from+n)*tensor.BlockSlots > m.limits.Positions:
		return nil, fmt.Errorf("socket: blocks [%d,%d) of a text, but %d tokens of context fill %d blocks", from, from+n,
			m.limits.Positions, m.limits.Positions/tensor.BlockSlots)
	}
	q, end := m.seqs[r.Seq], (from+n)*tensor.BlockSlots
	switch {
	case r.Seq == 0:
	case q == nil || !q.HandedOver || q.inFlight || q.Owner != int(r.Owner):
		return nil, fmt.Errorf("socket: rank %d has no cache of sequence %d to fetch blocks from", r.Owner, r.Seq)
	case end > q.Read+q.Staged:
		return nil, fmt.Errorf("socket: blocks [%d,%d) of sequence %d to fetch, but it has %d tokens", from, from+n, r.Seq, q.Read+q.Staged)
	}
	for i, id := range r.Blocks {
		if _, here := m.blocks[id]; here || slices.Contains(r.Blocks[:i], id) {
			return nil, fmt.Errorf("socket: block %d exists already", id)
		}
	}
	for i, id := range r.Blocks {
		m.blocks[id] = int(r.From) + i
		m.snapshots[id] = m.limits.Recurrent && i == n-1
	}
	if q == nil {
		return nil, nil
	}
	return m.countLast(nil, r.Seq, q, end), nil
}

// evict drops blocks of the prefix cache. Sequences that hold their rows keep them.
func (m *Machine) evict(effects []Effect, blocks []uint64) []Effect {
	for _, id := range blocks {
		if _, here := m.blocks[id]; here { // the others were dropped before
			delete(m.blocks, id)
			delete(m.sums, id)
			delete(m.snapshots, id)
			effects = append(effects, Effect{Do: DoEvict, Block: id})
		}
	}
	return effects
}

func (m *Machine) dropExtras(effects []Effect, blocks []uint64) []Effect {
	for _, id := range blocks {
		if m.sums[id] || m.snapshots[id] {
			delete(m.sums, id)
			delete(m.snapshots, id)
			effects = append(effects, Effect{Do: DoDropExtras, Block: id})
		}
	}
	return effects
}

func (m *Machine) release(effects []Effect, seqs []uint64) []Effect {
	for _, id := range seqs {
		if m.seqs[id] == nil && m.kept[id] == nil && m.taking.all[id] == nil {
			m.taking.released(id)
			continue
		}
		delete(m.seqs, id)
		delete(m.kept, id)
		delete(m.taking.all, id)
		effects = append(effects, Effect{Do: DoRelease, Seq: id})
	}
	return effects
}

// Job begins a job between steps, and JobDone ends it. A job may make whole caches, of sequences
// that are not open then.
func (m *Machine) Job(epoch uint32) error {
	if err := m.between("job", epoch); err != nil {
		return err
	}
	m.busy = true
	return nil
}

// JobDone takes the caches that a job has made. It frees those of an epoch that is over.
func (m *Machine) JobDone(epoch uint32, made map[uint64]*Kept) (effects []Effect) {
	if epoch != m.Epoch || !m.busy {
		for _, id := range slices.Sorted(maps.Keys(made)) {
			effects = append(effects, Effect{Do: DoRelease, Seq: id})
		}
		return effects
	}
	m.busy = false
	for id, k := range made {
		delete(m.seqs, id)
		k.Layout = m.limits.Layout
		m.kept[id] = k
	}
	return nil
}

func (m *Machine) between(what string, epoch uint32) error {
	if epoch != m.Epoch || m.Phase != Ready || m.busy {
		return fmt.Errorf("%w: %s in epoch %d, at %d (%s)", ErrStaleEpoch, what, epoch, m.Epoch, m.Phase)
	}
	return nil
}
