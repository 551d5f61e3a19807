package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// BatchOptions is a load for an embedded cluster with a fixed cache memory.
type BatchOptions struct {
	Model    string // folder, or checkpoint.RandomPrefix and a shape
	Weights  string
	KV       string
	Threads  int
	Memory   int64 // bytes of cache
	Requests int
	Prompt   int // tokens per prompt
	Output   int // tokens per answer
	Policies []string
	Nodes    int // sockets, or node processes; 1 without Start
	// KVDisk is a folder for rows that do not fit in Memory, at most KVDiskSize bytes; empty: none.
	KVDisk     string
	KVDiskSize int64
	// Start, if set, starts the measured cluster of node processes.
	Start func(ctx context.Context, policy string) (BatchEngine, func(), error)
}

// BatchEngine runs a load: cluster.Local or cluster.Coordinator.
type BatchEngine interface {
	engine.Engine
	CacheBytes(policy string, prompt, output int) (bytes, full int64)
}

// Batch compares the number of sequences and the throughput of a fixed cache memory under several policies.
type Batch struct {
	Model    string     `json:"model"`
	Weights  string     `json:"quant"`
	KV       string     `json:"kv_type"`
	Threads  int        `json:"threads"`
	Nodes    int        `json:"nodes"`
	Memory   int64      `json:"kv_memory_bytes"` // per node
	Requests int        `json:"requests"`
	Prompt   int        `json:"prompt_tokens"`
	Output   int        `json:"output_tokens"`
	Rows     []BatchRow `json:"policies"`
	Machine  Machine    `json:"machine"`
}

// BatchRow is one policy under the load.
type BatchRow struct {
	Policy      string  `json:"policy"`
	Resident    int64   `json:"sequence_bytes"` // of one sequence at its end
	Compression float64 `json:"compression"`    // full cache divided by that
	Sequences   int     `json:"max_sequences"`  // concurrent sequences at the peak
	OverFull    float64 `json:"sequences_over_first"`
	PeakBytes   int64   `json:"peak_bytes"`   // of cache in use
	Seconds     float64 `json:"seconds"`      // until all requests were done
	TokensPerS  float64 `json:"tokens_per_s"` // generated tokens over the whole time
	TokensOver  float64 `json:"tokens_over_first"`
	DecodePerS  float64 `json:"decode_tokens_per_s"` // generated tokens, in the fastest decodeSteps steps with all those sequences
	DecodeOver  float64 `json:"decode_over_first"`
	MedianPerS  float64 `json:"decode_median_tokens_per_s"` // in the median of all such steps
	MedianOver  float64 `json:"decode_median_over_first"`
	TTFT        float64 `json:"median_ttft_s"`
	FileBytes   int64   `json:"file_bytes,omitempty"` // of one sequence, with filled caches
	Failed      int     `json:"failed"`
}

// RunBatch sends all requests at once, for one policy after another.
func RunBatch(ctx context.Context, o BatchOptions, note func(string)) (*Batch, error) {
	out := &Batch{Model: o.Model, Threads: o.Threads, Memory: o.Memory, Nodes: max(o.Nodes, 1), Requests: o.Requests, Prompt: o.Prompt,
		Output: o.Output, Machine: ThisMachine()}
	ck, err := checkpoint.Open(o.Model)
	if err != nil {
		return nil, err
	}
	vocab, stored := ck.Config.Vocab, tensor.F32.String()
	if ck.Config.DType == tensor.BF16 {
		stored = tensor.BF16.String()
	}
	ck.Close()
	out.Weights, out.KV = o.Weights, o.KV
	for _, s := range []*string{&out.Weights, &out.KV} {
		if *s == "" {
			*s = stored
		}
	}
	for _, p := range o.Policies {
		note("policy " + p)
		row, err := runBatch(ctx, o, p, vocab)
		if err != nil {
			return nil, fmt.Errorf("bench: policy %s: %w", p, err)
		}
		out.add(row)
	}
	return out, nil
}

// add appends a row and compares it with the first.
func (b *Batch) add(row *BatchRow) {
	b.Rows = append(b.Rows, *row)
	first, last := &b.Rows[0], &b.Rows[len(b.Rows)-1]
	last.OverFull = float64(last.Sequences) / float64(max(first.Sequences, 1))
	if first.DecodePerS > 0 {
		last.DecodeOver = last.DecodePerS / first.DecodePerS
	}
	if first.TokensPerS > 0 {
		last.TokensOver = last.TokensPerS / first.TokensPerS
	}
	if first.MedianPerS > 0 {
		last.MedianOver = last.MedianPerS / first.MedianPerS
	}
}

// embedded starts a cluster of one socket in this process.
func (o BatchOptions) embedded(ctx context.Context, policy string) (BatchEngine, func(), error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := cluster.New(ctx,
		cluster.LocalConfig{KVBudget: o.Memory, KVDisk: o.KVDisk, KVDiskSize: o.KVDiskSize, Threads: o.Threads, Serve: cluster.ServeConfig{
			// drafts use no memory, but their speed depends on the text
			Model: o.Model, Weights: o.Weights, KV: o.KV, Policy: policy, Speculate: "off", Logger: quiet,
			MaxSequences: 256, Queue: o.Requests + 1, StepDeadline: 10 * time.Minute, SyncDeadline: 10 * time.Minute}})
	if err != nil {
		return nil, nil, err
	}
	return c, c.Close, nil
}

func runBatch(ctx context.Context, o BatchOptions, policy string, vocab int) (*BatchRow, error) {
	start := o.Start
	if start == nil {
		start = o.embedded
	}
	c, stop, err := start(ctx, policy)
	if err != nil {
		return nil, err
	}
	defer stop()
	row := &BatchRow{Policy: policy}
	bytes, full := c.CacheBytes(policy, o.Prompt, o.Output)
	row.Resident, row.Compression = bytes, float64(full)/float64(bytes)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var streams sync.WaitGroup
	emitted := make(chan token, 4096)
	firsts, failed := make(chan time.Duration, o.Requests), make(chan error, o.Requests)
	began := time.Now()
	for i := range o.Requests {
		events, err := c.Submit(ctx, request(i, o.Prompt, o.Output, vocab))
		if err != nil {
			return nil, err
		}
		streams.Go(func() {
			first := true
			for e := range events {
				if e.Token != engine.NoToken {
					emitted <- token{i, time.Since(began)}
					if first {
						firsts <- time.Since(began)
					}
					first = false
				}
				if e.Finish != "" && e.Finish != engine.FinishLength {
					failed <- errors.Join(e.Err, fmt.Errorf("ended by %s", e.Finish))
				}
			}
		})
	}
	go func() { streams.Wait(); close(emitted) }()
	var tokens []token
	look := time.NewTicker(25 * time.Millisecond)
	defer look.Stop()
	for open := true; open; {
		select {
		case t, ok := <-emitted:
			if open = ok; ok {
				tokens = append(tokens, t)
			}
		case <-look.C:
			sequences := 0
			for _, n := range c.Cluster().Nodes {
				sequences += n.Sequences
				row.PeakBytes = max(row.PeakBytes, n.KVUsedBytes)
			}
			row.Sequences = max(row.Sequences, sequences)
		}
	}
	row.Seconds = time.Since(began).Seconds()
	row.Failed = len(failed)
	row.TokensPerS = float64(len(tokens)) / row.Seconds
	row.DecodePerS, row.MedianPerS = decodeRates(tokens, row.Sequences, decodeSteps)
	row.TTFT = drainedMedian(firsts)
	if row.Failed == o.Requests {
		return nil, <-failed
	}
	return row, ctx.Err()
}

// request returns the i-th request of a load, greedy.
func request(i, prompt, output, vocab int) *engine.Request {
	r := &engine.Request{ID: fmt.Sprintf("bench-%d", i), Prompt: make([]int32, prompt), MaxTokens: output, Sampling: sampler.Default(),
		IgnoreEOS: true, PromptLogprobs: -1, NoCache: true}
	r.Sampling.Temperature = 0
	rng := rand.New(rand.NewPCG(uint64(i), 9))
	for j := range r.Prompt {
		r.Prompt[j] = int32(rng.IntN(vocab))
	}
	return r
}

// decodeSteps is the number of steps for the decode rate, small enough to fit between two prompts.
const decodeSteps = 24

// token is one token of sequence seq, at a time since the start.
type token struct {
	seq int
	at  time.Duration
}

// decodeRates returns the fastest and the median rate, in tokens per second. It takes all runs of
// `steps` steps in which this number of sequences decodes about `steps` tokens each, and no other
// sequence gets any.
func decodeRates(tokens []token, sequences, steps int) (best, median float64) {
	slices.SortStableFunc(tokens, func(a, b token) int { return cmp.Compare(a.at, b.at) })
	n := steps * sequences
	got := map[int]int{} // of the last n tokens
	var all []float64
	for i, t := range tokens {
		got[t.seq]++
		if i < n {
			continue
		}
		if first := tokens[i-n].seq; got[first] == 1 {
			delete(got, first)
		} else {
			got[first]--
		}
		if d := t.at - tokens[i-n].at; d > 0 && len(got) == sequences && allWithinOne(got, steps) {
			all = append(all, float64(n)/d.Seconds())
		}
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)-1], all[len(all)/2]
}

func allWithinOne(got map[int]int, steps int) bool {
	for _, n := range got {
		if n < steps-1 || n > steps+1 {
			return false
		}
	}
	return true
}

// drainedMedian returns the median of the values in a channel, in seconds.
func drainedMedian(c chan time.Duration) float64 {
	var all []time.Duration
	for len(c) > 0 {
		all = append(all, <-c)
	}
	if len(all) == 0 {
		return 0
	}
	return medianOf(all).Seconds()
}
