package bench

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// RunFilled is RunBatch for models whose prompts take too long to read. It computes how many
// sequences the ledger admits in o.Memory, with the batcher's cost functions. It measures decode at
// that batch size on one socket, with random cache rows that are filled and compressed by the same
// code (alone.Fill).
func RunFilled(ctx context.Context, o BatchOptions, note func(string)) (*Batch, error) {
	b := &Batch{Model: o.Model, Threads: o.Threads, Nodes: 1, Memory: o.Memory, Prompt: o.Prompt, Output: o.Output,
		Machine: ThisMachine(), Weights: o.Weights, KV: o.KV}
	weights, err := tensor.ParseDType(o.Weights)
	if err != nil {
		return nil, err
	}
	kv, err := tensor.ParseDType(o.KV)
	if err != nil {
		return nil, err
	}
	for _, spec := range o.Policies {
		row, err := runFilled(ctx, o, spec, weights, kv, note)
		if err != nil {
			return nil, fmt.Errorf("bench: policy %s: %w", spec, err)
		}
		b.add(row)
	}
	return b, nil
}

// Held returns the number of sequences with prompt and output tokens that fit together in memory
// bytes on one socket, while the last of them is read. Their first `spilled` blocks are in files.
func Held(g kvcache.Geometry, p *kvcache.Policy, prompt, output, spilled int, memory int64) int {
	resident := kvcache.SpilledBytes(g, prompt, prompt+output-1, 1, spilled, p)
	during := max(resident, kvcache.HandoverBytes(g, g.KVHeads, prompt, p)+kvcache.StatisticsBytes(g, g.KVHeads, prompt, p))
	if memory < during {
		return 0
	}
	return 1 + int((memory-during)/resident)
}

func runFilled(ctx context.Context, o BatchOptions, spec string, weights, kv tensor.DType, note func(string)) (*BatchRow, error) {
	p, err := kvpolicy.Parse(spec)
	if err != nil {
		return nil, err
	}
	p = p.For(o.Prompt)
	ck, err := checkpoint.Random(o.Model)
	if err != nil {
		return nil, err
	}
	g := shard.GeometryOf(&ck.Config, kv)
	ck.Close()
	full := kvcache.ResidentBytes(g, o.Prompt, o.Prompt+o.Output-1, kvcache.Full())
	spilled := 0
	if o.KVDisk != "" {
		spilled = kvcache.Spillable(g, o.Prompt, o.Prompt, p)
	}
	row := &BatchRow{Policy: spec, Resident: kvcache.SpilledBytes(g, o.Prompt, o.Prompt+o.Output-1, 1, spilled, p),
		Sequences: Held(g, p, o.Prompt, o.Output, spilled, o.Memory),
		FileBytes: kvcache.FileBytes(g, spilled, p)}
	row.Compression = float64(full) / float64(row.Resident)
	if row.Sequences == 0 {
		return nil, fmt.Errorf("no sequence fits %d bytes", o.Memory)
	}
	note("policy " + spec + ": loading")
	var scratch *tier.Scratch
	if spilled > 0 {
		if scratch, err = tier.OpenScratch(o.KVDisk, o.KVDiskSize, slog.New(slog.DiscardHandler)); err != nil {
			return nil, err
		}
		defer scratch.Close()
	}
	r, err := newRig(ctx, Options{Model: o.Model, Weights: weights, KV: kv, Threads: o.Threads, scratch: scratch}, 2*o.Memory, row.Sequences)
	if err != nil {
		return nil, err
	}
	defer r.close()
	note("policy " + spec + ": filling caches")
	if _, err := r.fill(ctx, row.Sequences, o.Prompt, spec); err != nil {
		return nil, err
	}
	note("policy " + spec + ": decoding")
	var took []time.Duration
	peak, err := r.decode(ctx, row.Sequences, o.Prompt, o.Output, func(t, _ time.Duration, _ step.Times) { took = append(took, t) })
	if err != nil {
		return nil, err
	}
	row.PeakBytes, row.Seconds = peak, average(took).Seconds()*float64(len(took))
	row.DecodePerS, row.MedianPerS, row.TokensPerS = rates(row.Sequences, took)
	return row, nil
}
