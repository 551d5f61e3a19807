package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/topology"
)

// Submit implements engine.Engine.
func (c *core) Submit(ctx context.Context, r *engine.Request) (<-chan engine.Event, error) {
	if err := c.Ready(); err != nil {
		return nil, err
	}
	policy := c.policy
	if r.Policy != "" {
		p, err := kvpolicy.Parse(r.Policy)
		if err != nil {
			return nil, apierr.ErrInvalid{Param: "kv_policy", Message: err.Error()}
		}
		if err := c.geometry.Fits(p); err != nil {
			return nil, apierr.ErrInvalid{Param: "kv_policy", Message: err.Error()}
		}
		policy = p
	}
	var bad *sampler.ParamError
	if err := r.Sampling.Validate(c.checkpoint.Config.Vocab); errors.As(err, &bad) {
		return nil, apierr.ErrInvalid{Param: bad.Param, Message: bad.Error()}
	}
	if r.Pool != pooling.None {
		policy = kvcache.Full() // the cache ends with the prompt
	}
	if r.Session != "" && policy.RebuildsByPrefill() {
		r.Context = 0 // the prefix cache has the turns before
	}
	if err := c.cardKeeps(policy); err != nil {
		return nil, apierr.ErrInvalid{Param: "kv_policy", Message: err.Error()}
	}
	adapter, err := c.adapterOf(r)
	if err != nil {
		return nil, err
	}
	stream := batcher.NewStream()
	cancel, err := c.batcher.Submit(ctx, batcher.Spec{
		ID: r.ID, Prompt: r.Prompt, MaxTokens: r.MaxTokens, Open: r.Open, Sampling: &r.Sampling, Stop: r.StopTokens, IgnoreEOS: r.IgnoreEOS,
		Policy: policy, Pool: r.Pool, PromptLogprobs: r.PromptLogprobs, Priority: r.Priority,
		Context: r.Context, Hold: r.Hold, Session: c.session(r.Tenant, r.Session), SessionMillis: r.SessionTTL.Milliseconds(),
		Emitted: r.Emitted, Accepted: r.Accepted, NoCache: r.NoCache, Salt: c.salt(r),
		Speculate: speculate.Mode(r.Speculate), Tenant: r.Tenant + "\x00" + r.Salt, Adapter: adapter,
	}, stream)
	if err != nil {
		return nil, c.refusal(err, r)
	}
	out := make(chan engine.Event, 16)
	p := &eventAdapter{request: r, eos: c.checkpoint.Config.EOS, out: out}
	if c.serve.Tracer != nil {
		p.core = c
	}
	c.steps.Go(func() {
		defer close(out)
		defer cancel()
		for {
			e, err := stream.Next(ctx)
			if err != nil || !p.handle(ctx, e) {
				return
			}
		}
	})
	return out, nil
}

// salt separates requests in the prefix cache. Requests with different salts share no blocks. Neither
// do requests with different API keys, unless the server shares the cache: response times then reveal
// texts of other keys.
func (c *core) salt(r *engine.Request) string {
	tenant := r.Tenant
	if c.serve.PrefixCache == PrefixShared {
		tenant = ""
	}
	return fmt.Sprintf("%d %s%s", len(tenant), tenant, r.Salt)
}

// session returns the name of a tenant's session that is unique among the sessions of all keys.
func (c *core) session(tenant, session string) string {
	if session == "" {
		return ""
	}
	return fmt.Sprintf("%d %s%s", len(tenant), tenant, session)
}

// EndSession frees the cache that waits for the next turn of a session.
func (c *core) EndSession(tenant, session string) {
	c.batcher.EndSession(c.session(tenant, session))
}

// Contexts implements engine.Contexts.
func (c *core) Contexts() map[string]engine.ContextState {
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	snap, err := c.batcher.Snapshot(ctx)
	if err != nil {
		return nil
	}
	states := map[string]engine.ContextState{}
	for _, r := range slices.Concat(snap.Running, snap.Waiting, snap.Evicted) {
		switch {
		case !r.Hold:
		case r.State == "context":
			states[r.ID] = engine.ContextReady
		case r.State == "evicted":
			states[r.ID] = engine.ContextEvicted
		default:
			states[r.ID] = engine.ContextReading
		}
	}
	return states
}

// ContextLimit returns the most tokens of prompt and output together under a policy.
func (c *core) ContextLimit(policy string) int {
	if p, err := kvpolicy.Parse(policy); err == nil && policy != "" {
		return p.ContextLimit(c.serve.MaxContext)
	}
	return c.policy.ContextLimit(c.serve.MaxContext)
}

// Unread implements engine.Engine.
func (c *core) Unread(id string, yes bool) { c.batcher.Unread(id, yes) }

// PromptRoom implements engine.Sizer.
func (c *core) PromptRoom(r *engine.Request) int {
	policy := c.policy
	if p, err := kvpolicy.Parse(r.Policy); err == nil && r.Policy != "" {
		policy = p
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	return c.batcher.PromptRoom(ctx, batcher.Spec{Prompt: r.Prompt, MaxTokens: r.MaxTokens, Policy: policy, PromptLogprobs: r.PromptLogprobs})
}

// CacheBytes returns the final cache size of a sequence on its owner, and that of a full cache. The
// last token is never fed back, so it is not included.
func (c *core) CacheBytes(policy string, prompt, output int) (bytes, full int64) {
	p := c.policy
	if policy != "" {
		if q, err := kvpolicy.Parse(policy); err == nil {
			p = q
		}
	}
	p = p.For(prompt)
	tokens := prompt + max(output, 1) - 1
	return kvcache.ResidentBytes(c.geometry, prompt, tokens, p), kvcache.ResidentBytes(c.geometry, prompt, tokens, kvcache.Full())
}

// refusal converts an error of the batcher into the API's typed errors.
func (c *core) refusal(err error, r *engine.Request) error {
	var no *batcher.Reject
	if !errors.As(err, &no) {
		if errors.Is(err, batcher.ErrBusy) {
			return apierr.ErrOverloaded{Reason: "requests arrive faster than they are accepted", RetryAfter: time.Second}
		}
		return err
	}
	switch no.Code {
	case batcher.CodeOverloaded:
		return apierr.ErrOverloaded{Reason: no.Message, RetryAfter: time.Duration(no.RetryAfter) * time.Second}
	case batcher.CodeDraining:
		return apierr.ErrNotReady{Reason: no.Message}
	case batcher.CodeBudget:
		if g := c.group(); g != nil && g.Budget() < c.most.Load() {
			return apierr.ErrNotReady{Reason: no.Code + " while nodes are missing: " + no.Message, RetryAfter: 5 * time.Second}
		}
	case batcher.CodeContext:
		return apierr.ErrTooLong{Limit: c.ContextLimit(r.Policy), Prompt: len(r.Prompt), Completion: r.MaxTokens}
	}
	return apierr.ErrInvalid{Param: "prompt", Code: no.Code, Message: no.Message}
}

// eventAdapter converts the batcher's events into the API's. It attaches prompt scores to the first
// token, and a token that ends the sequence to the finish event.
type eventAdapter struct {
	request *engine.Request
	eos     []int32
	out     chan<- engine.Event
	scores  []engine.PromptLogprob
	held    *engine.Event // a stop token, until its Finish
	core    *core         // set if tracing is on
	since   *StepTotals   // taken at the first token
}

// handle handles one event; false means that no event follows.
func (p *eventAdapter) handle(ctx context.Context, e batcher.Event) bool {
	switch {
	case e.Scores != nil:
		if p.scores == nil {
			p.scores = make([]engine.PromptLogprob, len(p.request.Prompt))
		}
		for _, s := range e.Scores {
			p.scores[s.Position] = engine.PromptLogprob{Logprob: s.Logprob, Top: s.Top}
		}
		return true
	case e.Emit != nil:
		if p.core != nil && p.since == nil {
			t := p.core.StepTotals()
			p.since = &t
		}
		out := engine.Event{Token: e.Emit.Token, Logprob: e.Emit.Logprob, Top: e.Emit.Top, PromptLogprobs: p.scores,
			More: e.Emit.More, Cached: e.Emit.Cached}
		p.scores = nil
		if p.ends(out.Token) {
			p.held = &out
			return true
		}
		return p.send(ctx, out)
	case e.Finish != nil:
		p.send(ctx, p.last(e.Finish))
	}
	return false
}

func (p *eventAdapter) ends(token int32) bool {
	return slices.Contains(p.request.StopTokens, token) || !p.request.IgnoreEOS && slices.Contains(p.eos, token)
}

func (p *eventAdapter) last(f *batcher.Finish) engine.Event {
	out := engine.Event{Token: engine.NoToken, PromptLogprobs: p.scores}
	if p.held != nil {
		out = *p.held
	}
	span := func(from, to int64) time.Duration {
		if from < 0 || to < from {
			return 0
		}
		return time.Duration(to-from) * time.Millisecond
	}
	out.Pooled = f.Pooled
	out.Timings = &engine.Timings{Queue: span(f.Arrived, f.Started), Prefill: span(f.Started, f.FirstToken),
		Decode: span(f.FirstToken, f.Ended)}
	if p.since != nil {
		out.Timings.Steps = p.core.stepper.TracedSince(*p.since)
	}
	if f.Speculated.Rows > 0 {
		out.Drafts = &engine.Drafts{Rows: f.Speculated.Rows, Drafted: f.Speculated.Drafted,
			Accepted: f.Speculated.Accepted, At: f.Speculated.At[:]}
		for _, v := range f.Verified {
			out.Drafts.PerStep = append(out.Drafts.PerStep, engine.DraftStep{Drafted: int(v.Drafted), Accepted: int(v.Accepted)})
		}
	}
	switch {
	case f.Reason == batcher.ReasonStop:
		out.Finish = engine.FinishStop
	case f.Reason == batcher.ReasonLength:
		out.Finish = engine.FinishLength
	case f.Reason == batcher.ReasonCancelled:
		out.Finish = engine.FinishCancelled
	case f.Code == batcher.CodeBanned: // the client's mistake
		out.Finish, out.Err = engine.FinishError, apierr.ErrInvalid{Code: f.Code, Message: strings.TrimPrefix(f.Message, "sampler: ") + "."}
	default:
		out.Finish, out.Err = engine.FinishError, apierr.ErrFailed{Code: f.Code, Message: f.Message}
	}
	return out
}

func (p *eventAdapter) send(ctx context.Context, e engine.Event) bool {
	select {
	case p.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// Ready implements engine.Engine. It is nil while a placement serves, and for recoverGrace after a
// withdrawal, when requests are accepted and wait. After that, clients should retry later or
// elsewhere.
func (c *core) Ready() error {
	phase, err := c.serving()
	if err == nil || c.most.Load() == 0 || phase == topology.Over {
		return err
	}
	var outage time.Duration
	if since := c.withdrawn.Load(); since != nil {
		outage = time.Since(*since)
	}
	if outage < recoverGrace {
		return nil
	}
	var not apierr.ErrNotReady
	if errors.As(err, &not) {
		not.Reason = fmt.Sprintf("no placement serves since %v: %s", outage.Round(time.Second), not.Reason)
		not.RetryAfter = recoverRetry
		return not
	}
	return err
}

const (
	// recoverGrace is how long new requests may wait for a recovery before they are refused. A
	// typical recovery takes one to two seconds.
	recoverGrace = 10 * time.Second
	recoverRetry = 2 * time.Second
)

// serving returns nil while a placement serves, else the phase and the reason.
func (c *core) serving() (topology.AuthorityPhase, error) {
	if c.group() != nil && c.placedOnce.Load() {
		return topology.Serving, nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	v, err := c.director.View(ctx)
	if err != nil {
		return "", apierr.ErrNotReady{Reason: err.Error()}
	}
	why := "the nodes are forming their group"
	switch v.Phase {
	case topology.Gathering:
		why = "gathering nodes: " + v.Reason
	case topology.Recording:
		why = "the placement is being recorded"
	case topology.Over:
		why = v.Reason
	case topology.Loading:
		why = "the nodes are loading their slices"
	}
	return v.Phase, apierr.ErrNotReady{Reason: why, RetryAfter: time.Second}
}

// Health implements engine.Engine: nil if steps can complete.
func (c *core) Health() error {
	select {
	case <-c.batcher.Done():
		return errors.Join(errors.New("cluster: the batcher, which plans all steps, has stopped: restart the coordinator"), c.batcher.Err())
	default:
	}
	if _, err := c.serving(); err != nil || c.trouble == nil {
		return err
	}
	if why := c.trouble(); why != "" {
		return apierr.ErrDegraded{Reason: why}
	}
	return nil
}

// shownSequences is the maximum number of sequences in /v1/cluster.
const shownSequences = 512

// Cluster returns the state of one model and of the nodes' parts of it.
func (c *core) Cluster() wire.ClusterState {
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	v, err := c.director.View(ctx)
	if err != nil {
		return wire.ClusterState{WaitingReason: err.Error()}
	}
	s := c.state(ctx, &v)
	c.addReader(ctx, &v, &s)
	return s
}

// state is Cluster for a view of the director.
func (c *core) state(ctx context.Context, v *coordinator.View) wire.ClusterState {
	snap, err := c.batcher.Snapshot(ctx)
	if err != nil {
		return wire.ClusterState{WaitingReason: err.Error()}
	}
	place := c.place(v)
	s := wire.ClusterState{Epoch: uint64(v.Epoch), Mapping: string(place.Mapping), Running: len(snap.Running), Waiting: len(snap.Waiting),
		Model: c.serve.Names[0], Policy: c.serve.Policy, Policies: kvpolicy.Usage(), TokensPerSecond: math.Round(100*snap.TokensPerSecond) / 100,
		BatchRows: snap.BatchRows, BatchSequences: snap.BatchSequences, TryingThreads: snap.Trying, MicroBatches: snap.MicroBatches,
		Recoveries: c.recoveries.Load(), Nodes: []wire.NodeState{}, Fences: v.Fences}
	if c.serve.PrefixCache != PrefixOff {
		s.PrefixCache = &wire.PrefixCacheState{Mode: c.serve.PrefixCache, Queries: snap.Prefix.Queries, Hits: snap.Prefix.Hits,
			Tokens: snap.PrefixBlocks * tensor.BlockSlots, Evicted: snap.Prefix.Evicted, Answers: snap.Prefix.Answers}
		if g := c.group(); g != nil && g.Disk {
			s.PrefixCache.Disk = &wire.PrefixDiskState{Restored: snap.Prefix.Restored, Late: snap.Prefix.Late}
		}
	}
	if d := &snap.Speculated; d.Rows > 0 || c.serve.Speculate != string(speculate.Off) {
		s.Drafts = &wire.DraftsState{Mode: c.serve.Speculate, Steps: d.Rows, Drafted: d.Drafted, Accepted: d.Accepted,
			At: d.At[:], TextBytes: d.Texts, Recent: d.Recent}
	}
	for _, r := range snap.Running[:min(len(snap.Running), shownSequences)] {
		s.Sequences = append(s.Sequences,
			wire.SequenceState{Node: r.Owner, State: r.State, Prompt: r.Prompt, Output: r.Output, Cached: r.Cached,
				KVBytes: r.Bytes - r.Copied, Replica: r.Replica, Cut: r.Cut,
				KVFull: kvcache.ResidentBytes(c.geometry, r.Cached, r.Cached, kvcache.Full())})
	}
	if len(snap.Waiting) > 0 {
		s.WaitingReason = snap.Waiting[0].Reason
	}
	if !c.prefill && len(v.Placement.Prefill) > 0 {
		s.Transfers = &wire.TransfersState{Caches: snap.Totals.Transferred, Failed: snap.Totals.TransferErrors}
	}
	if t := &snap.Totals; slices.ContainsFunc(snap.Sockets, func(k batcher.SocketLedger) bool { return k.Scratch > 0 }) {
		s.SavedCaches = &wire.SavedCachesState{Written: t.Saved, Read: t.Loaded, Failed: t.LoadErrors}
	}
	s.LoadSeconds = math.Round(v.Loading.Seconds()*10) / 10
	figures := c.stepper.Figures(v.Nodes)
	s.Recovery = c.recovery.State(snap.Totals, figures.ReplicaBytes)
	if snap.InFlight || snap.TokensPerSecond > 0 {
		s.StepMillis = float64(figures.Step.Microseconds()) / 1000
	}
	s.StepRows, s.WireBytes = figures.Total.Rows, figures.Total.Wire
	s.Clustering, s.ExchangeWait = figures.Total.Clustering.Seconds(), figures.Total.Wait.Seconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range v.Known {
		h, cached := v.Hosts[n.ID], int64(0)
		state := "joining"
		if v.Drained[n.ID] == n.Incarnation {
			state = "drained"
		} else if slices.Contains(v.Quarantined, n.ID) {
			state = "unreachable"
		}
		node := wire.NodeState{ID: n.ID, PID: h.PID, Address: h.Address, State: state, Role: roleOf(v, &n), KVBudgetBytes: c.budgetOn(n),
			Device: n.Device, DeviceMemory: n.DeviceMemory, Build: h.Build, Arithmetic: h.Arithmetic}
		if f, out := v.Fenced[n.ID]; out {
			state = "fenced"
			node.Reason = f.Reason
		}
		node.State, node.Late = state, figures.Late[n.ID]
		for i, p := range place.Slices {
			if p.ID != n.ID {
				continue
			}
			node.State = "ready"
			if v.Drained[n.ID] == n.Incarnation {
				node.State = "draining"
			}
			if v.Phase != topology.Serving {
				node.State = string(v.Phase)
			}
			node.Threads = n.Threads.Shifted(snap.ThreadShift)
			node.Share = float64(p.FFN.Len()) / float64(c.checkpoint.Config.FFN)
			if snap.Epoch == v.Epoch && i < len(snap.Sockets) {
				k := snap.Sockets[i]
				node.Sequences, node.KVUsedBytes, node.KVReserved, node.KVReplicas, node.KVFreed = k.Sequences,
					max(k.Used, 0), k.Reserved, k.Replicas, k.Freed
				node.KVDiskReserved = k.Files
				cached = k.Evictable
			}
		}
		if st := c.status[n.ID]; st != nil {
			node.Subscriptions, node.LoadedBytes, node.LoadBytes = int(st.Subscriptions), st.LoadedBytes, st.LoadBytes
			node.RSSBytes, node.Goroutines, node.OpenFiles, node.WeightBytes = st.ResidentBytes,
				int(st.Goroutines), int(st.OpenFiles), st.WeightBytes
			node.KVUsedBytes, node.KVPeakBytes, node.FetchedBytes = st.KvUsedBytes, st.KvPeakBytes, st.FetchedBytes
			node.DeviceUsed = st.DeviceUsedBytes
			node.LoRABytes, node.LoRAAdapters = st.AdapterBytes, int(st.Adapters)
			if k := st.Scratch; k != nil {
				node.KVDiskUsedBytes, node.KVDiskBytes, node.KVDiskFailures = k.Bytes, k.Limit, k.Failed+k.SavedFailed
				if node.KVDiskSaved = k.SavedBytes; s.SavedCaches != nil {
					s.SavedCaches.Bytes, s.SavedCaches.Caches = s.SavedCaches.Bytes+k.SavedBytes, s.SavedCaches.Caches+int(k.SavedCaches)
				}
			}
			if k := st.PrefixDisk; k != nil && s.PrefixCache != nil && s.PrefixCache.Disk != nil {
				d := s.PrefixCache.Disk
				d.Bytes, d.Limit, d.Blocks, d.Written, d.Read = d.Bytes+k.Bytes, d.Limit+k.Limit, d.Blocks+k.Blocks, d.Written+k.Written, d.Read+k.Read
				d.Dropped, d.Removed, d.Damaged, d.Failed = d.Dropped+k.Dropped, d.Removed+k.Removed, d.Damaged+k.Damaged, d.Failed+k.Failed
				d.IndexesComputed, d.IndexesRead = d.IndexesComputed+k.IndexesComputed, d.IndexesRead+k.IndexesRead
			}
		}
		node.KVPrefix = min(cached, node.KVUsedBytes)
		node.KVUsedBytes -= node.KVPrefix
		s.Nodes = append(s.Nodes, node)
	}
	for _, id := range slices.Sorted(maps.Keys(v.Refused)) {
		h := v.Hosts[id]
		s.Nodes = append(s.Nodes, wire.NodeState{ID: id, PID: h.PID, Address: h.Address, State: "refused: " + v.Refused[id],
			Build: h.Build, Arithmetic: h.Arithmetic})
	}
	return s
}

// Events returns the events that occurred or changed after a revision.
func (c *core) Events(revision uint64) []wire.ClusterEvent {
	list, _ := c.events.After(revision)
	return list
}

// ServeEvents adds the routes of the event log and the recent past to an API server. Call it
// before the server serves.
func (c *core) ServeEvents(a *api.Server) error { return c.events.AddRoutes(a) }

// StepTotals returns the time and work of all steps so far.
func (c *core) StepTotals() StepTotals { return c.stepper.Totals() }
