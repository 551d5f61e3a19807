package batcher

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts in testdata again")

// Each file in testdata is a transcript: a command, "----", and the effects. After an intended
// change, run with -rewrite and read the diff.
func TestInteraction(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &story{t: t}
			var out strings.Builder
			for i, part := range strings.Split(strings.TrimRight(string(text), "\n"), "\n\n") {
				if i > 0 {
					out.WriteString("\n")
				}
				command, _, _ := strings.Cut(part, "\n----")
				out.WriteString(command + "\n")
				lines := strings.Split(command, "\n")
				if last := lines[len(lines)-1]; !strings.HasPrefix(last, "#") {
					out.WriteString("----\n" + s.run(last))
				}
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got := out.String(); got != string(text) {
				t.Errorf("%s: the transcript has changed (-rewrite accepts it); first difference:\n%s", file, firstDifference(got, string(text)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, g[i], strings.Join(w[min(i, len(w)):min(i+1, len(w))], ""))
		}
	}
	return "the file is longer"
}

// story drives one state with the commands of a file.
type story struct {
	t      *testing.T
	state  *State
	flight *plan.Plan
	ids    map[uint64]string // of the requests of each sequence
	now    int64
}

type arguments map[string]string

func (a arguments) int(key string, otherwise int) int {
	if v, ok := a[key]; ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			panic(err)
		}
		return n
	}
	return otherwise
}

func (s *story) run(line string) string {
	words := strings.Fields(line)
	a := arguments{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		a[k] = v
	}
	switch words[0] {
	case "config":
		s.ids = map[uint64]string{}
		s.state = testState(s.t, func(c *Config) {
			c.ContextLimit = a.int("context", c.ContextLimit)
			c.TokenBudget = a.int("budget", c.TokenBudget)
			c.Chunk = a.int("chunk", min(c.Chunk, c.TokenBudget))
			c.MaxRunning = a.int("running", c.MaxRunning)
			c.MaxWaiting = a.int("waiting", c.MaxWaiting)
			c.JobMillis = int64(a.int("job", 60_000))
			c.MaxFailures = a.int("failures", 8)
			c.PrefillHere = a.int("here", 256)
			c.EOS = []int32{2}
			if c.Whole = a["whole"] != ""; c.Whole {
				c.Chunk = c.TokenBudget
			}
			c.NoPrefixCache = a["prefix"] == ""
			c.Geometry.Across = a["across"] != ""
			if n := a.int("drafts", 0); n > 0 {
				c.Guess = func(id string, position int) (drafts []int32) {
					for i := range n {
						drafts = append(drafts, modelToken(id, position+i-len(s.state.requests[id].Prompt)))
						if i >= a.int("right", n) {
							drafts[i]++
						}
					}
					return drafts
				}
			}
		})
		return fmt.Sprintf("a block is %d bytes; %d layer, %d KV heads\n", block, geometry.Layers, geometry.KVHeads)
	case "placed":
		s.flight = nil
		return s.step(Placed{Epoch: uint32(a.int("epoch", 0)), Sockets: sockets(a["sockets"]),
			Disk: a["disk"] != "", Prefill: a["prefill"] != ""})
	case "unplaced":
		return s.step(Unplaced{Reason: a["reason"]})
	case "submit":
		return s.step(Submit{s.spec(a)})
	case "unread":
		return s.step(Unread{ID: a["id"], Yes: a["yes"] == "true"})
	case "cancel":
		return s.step(Cancel{a["id"]})
	case "drain":
		return s.step(Drain{})
	case "tick":
		s.now += int64(a.int("ms", 0))
		return s.step(Tick{s.now})
	case "failed":
		return s.step(StepFailed{uint32(a.int("epoch", int(s.flight.Epoch))), uint64(a.int("step", int(s.flight.Step))), a["reason"]})
	case "done":
		var out string
		for range a.int("times", 1) {
			out = s.done(a)
		}
		return out
	case "disk":
		return s.step(DiskDone{Number: uint64(a.int("number", 0)), Blocks: a.int("blocks", 0)})
	case "read":
		return s.step(s.prefillDone(a))
	case "take":
		return s.step(TakeDone{Number: uint64(a.int("number", 0)), Err: a["error"]})
	case "reset":
		return s.step(ResetPrefixCache{})
	case "snapshot":
		return describeSnapshot(s.state.Snapshot())
	}
	panic("unknown command " + line)
}

// prefillDone is the end of a read: of a number of tokens, with the token after them.
func (s *story) prefillDone(a arguments) PrefillDone {
	d := prefillgroup.Done{Number: uint64(a.int("number", 0)), Epoch: s.state.epoch, Seq: uint64(a.int("seq", 77)),
		Tokens: a.int("tokens", 0), Err: a["error"], Fault: a["fault"] != ""}
	if r := s.state.remote.requested[d.Number]; r != nil && d.Err == "" {
		if d.Tokens = cmp.Or(d.Tokens, r.toRead()); d.Tokens >= len(r.Prompt) {
			d.Sample = &sampler.Result{Token: modelToken(r.ID, d.Tokens-len(r.Prompt))}
		}
		for pos := 1; r.PromptLogprobs >= 0 && pos < len(r.Prompt); pos++ {
			d.Scores = append(d.Scores, PromptLogprob{Position: pos})
		}
		if r.Pool != pooling.None {
			d.Pooled = []float32{float32(len(r.Prompt))}
		}
	}
	return d
}

// sockets reads "n1:10:0-2,n2:8:2-4": name, blocks, KV heads.
func sockets(text string) []Socket {
	var list []Socket
	for part := range strings.SplitSeq(text, ",") {
		var k Socket
		f := strings.Split(part, ":")
		k.ID = f[0]
		n, _ := strconv.Atoi(f[1])
		k.Budget = int64(n) * block
		fmt.Sscanf(f[2], "%d-%d", &k.Heads.Lo, &k.Heads.Hi)
		list = append(list, k)
	}
	return list
}

func (s *story) spec(a arguments) Spec {
	policy, err := kvpolicy.Parse(a["policy"])
	if err != nil {
		panic(err)
	}
	p := Spec{ID: a["id"], Prompt: prompt(a["id"], a.int("prompt", 1)), MaxTokens: a.int("max", 1), Sampling: greedy, Policy: policy,
		PromptLogprobs: a.int("prompt_logprobs", -1), Priority: a.int("priority", 0), Arrival: s.now, Deadline: int64(a.int("deadline", 0))}
	if text := a["text"]; text != "" {
		p.Prompt = begin(prompt(text, len(p.Prompt)), p.ID, a.int("parts", len(p.Prompt)))
	}
	if after, from, ok := strings.Cut(a["after"], ":"); ok { // the prompt continues with its output there
		n, _ := strconv.Atoi(from)
		for i := n; i < len(p.Prompt)-1; i++ {
			p.Prompt[i] = modelToken(after, i-n)
		}
	}
	if p.Pool, err = pooling.Parse(cmp.Or(a["pool"], "none")); err != nil {
		panic(err)
	}
	p.Prefill = uint64(a.int("read", 0))
	p.Accepted, p.NoCache, p.Salt = a["job"] != "", a["cache"] == "false", a["salt"]
	for i := range a.int("emitted", 0) {
		p.Emitted, p.Accepted = append(p.Emitted, modelToken(p.ID, i)), true
	}
	return p
}

// done answers the step in flight with the tokens of the fake model; token=7
// puts that token in place of all of them.
func (s *story) done(a arguments) string {
	p := s.flight
	if p == nil {
		return "no step is in flight\n"
	}
	d := StepDone{Epoch: uint32(a.int("epoch", int(p.Epoch))), Step: uint64(a.int("step", int(p.Step)))}
	drawn := func(seq uint64, next int) sampler.Result {
		r := s.state.requests[s.ids[seq]]
		token := int32(0)
		if r != nil {
			token = modelToken(r.ID, max(0, next-len(r.Prompt)))
		}
		return sampler.Result{Token: int32(a.int("token", int(token)))}
	}
	result := func(seq uint64, next int) *Result {
		d.Results = append(d.Results, Result{Seq: seq, Samples: []sampler.Result{drawn(seq, next)}})
		return &d.Results[len(d.Results)-1]
	}
	for _, row := range p.Decode {
		r := result(row.Seq, row.Start+1)
		for i := 1; i < len(row.Tokens) && r.Samples[i-1].Token == row.Tokens[i]; i++ {
			r.Samples = append(r.Samples, drawn(row.Seq, row.Start+1+i))
		}
	}
	for _, c := range p.Chunks {
		r := result(c.Seq, c.Start+len(c.Tokens))
		if q := s.state.requests[s.ids[c.Seq]]; q != nil && q.Pool != pooling.None {
			if r.Samples = nil; c.Start+len(c.Tokens) == len(q.Prompt) && a["vector"] != "lost" {
				r.Pooled = []float32{float32(len(q.Prompt))}
			}
		}
		for pos := c.Start + 1; c.PromptLogprobs >= 0 && pos <= c.Start+len(c.Tokens); pos++ {
			r.Prompt = append(r.Prompt, PromptLogprob{Position: pos})
		}
	}
	if a["lost"] != "" {
		d.Results = nil
	}
	if used := a.int("used", -1); used >= 0 {
		d.Used = []int64{int64(used) * block}
	}
	return s.step(d)
}

func (s *story) step(in Input) string {
	e := s.state.Step(in)
	checkLedger(s.t, s.state)
	if s.state.flight == nil {
		s.flight = nil
	}
	if e.Start != nil {
		s.flight = e.Start
		for _, o := range e.Start.Open {
			s.ids[o.Seq] = o.ID
		}
	}
	if out := s.describe(e); out != "" {
		return out
	}
	return "ok\n"
}

func (s *story) describe(e Effects) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, f := range e.Faults {
		say("FAULT %s %s: %s", f.Kind, f.ID, f.Message)
	}
	for _, r := range e.Rejects {
		say("reject %s %s after=%ds: %s", r.ID, r.Code, r.RetryAfter, r.Message)
	}
	for _, c := range e.Scores {
		say("scores %s of positions %d to %d", c.ID, c.Prompt[0].Position, c.Prompt[len(c.Prompt)-1].Position)
	}
	for _, m := range e.Emits {
		say("emit %s [%d] = %d", m.ID, m.Index, m.Token)
	}
	for _, f := range e.Finishes {
		say("finish %s %s", f.ID, strings.TrimSpace(fmt.Sprintf("%s prompt=%d output=%d preempted=%d %s %s",
			f.Reason, f.Prompt, f.Output, f.Preempted, f.Code, f.Message)))
		if f.Pooled != nil {
			say("  vector %v", f.Pooled)
		}
	}
	if e.Broken != nil {
		say("broken epoch %d step %d: %s", e.Broken.Epoch, e.Broken.Step, e.Broken.Reason)
	}
	if e.Release != nil {
		say("release %v", e.Release)
	}
	for _, k := range e.Keep {
		say("keep of %d from %d on: blocks %v", k.Seq, k.From, k.Blocks)
	}
	if len(e.Evict) > 0 {
		say("evict blocks %v", e.Evict)
	}
	for _, d := range e.Disk {
		if d.Seq != 0 {
			say("disk %d: bring %d blocks of %d on %d from %d on as %v, before step %d, within %d ms",
				d.Number, len(d.Keys), d.Seq, d.Owner, d.From, d.Blocks, d.Step+1, d.Millis)
		} else if len(d.Blocks) == 0 {
			say("disk %d: are there %d blocks from %d on? within %d ms", d.Number, len(d.Keys), d.From, d.Millis)
		} else {
			say("disk %d: read %d blocks from %d on as %v, before step %d, within %d ms", d.Number,
				len(d.Keys), d.From, d.Blocks, d.Step+1, d.Millis)
		}
	}
	for _, n := range e.Drops {
		say("drop read %d", n)
	}
	for _, r := range e.Prefills {
		say("read %d: %s, prompt %d, %d emitted, max %d", r.Prefill, r.ID, len(r.Prompt), len(r.Emitted), r.MaxTokens)
	}
	for _, t := range e.Takes {
		say("take %d: %d tokens of %d under %s as %d on %d", t.Number, t.Tokens, t.Source, t.Policy, t.Seq, t.Owner)
	}
	for _, d := range e.Exports {
		say("export %d: %s", d.Number, cmp.Or(d.Err, fmt.Sprintf("%d tokens of %d on %d, then %v; vector %v, %d scores",
			d.Tokens, d.Seq, d.Rank, d.Sample, d.Pooled, len(d.Scores)))+map[bool]string{true: " (fault)"}[d.Fault])
	}
	if p := e.Start; p != nil {
		say("step %d of epoch %d, %d tokens", p.Step, p.Epoch, p.Tokens())
		if p.Release != nil {
			say("  release %v", p.Release)
		}
		for _, k := range p.Keep {
			say("  keep of %d from %d on: blocks %v", k.Seq, k.From, k.Blocks)
		}
		if p.Evict != nil {
			say("  evict blocks %v", p.Evict)
		}
		if p.DropExtras != nil {
			say("  drop the sums of blocks %v", p.DropExtras)
		}
		for _, o := range p.Open {
			say("  open %d for %s: owner %d, %s, read %d (%d of them output), reserve %d", o.Seq,
				o.ID, o.Owner, o.Policy.Spec(), o.Read, o.Sampled, o.Reserve)
			if o.Pool != pooling.None {
				say("    pools %v", o.Pool)
			}
			if len(o.Shared) > 0 {
				say("    begins with blocks %v, %d tokens", o.Shared, len(o.Prefix))
			}
		}
		for _, d := range p.Decode {
			more := ""
			if n := len(d.Tokens) - 1; n > 0 {
				more = fmt.Sprintf(", %d drafts", n)
			}
			say("  decode %d (%s) position %d, %d accepted%s", d.Seq, s.ids[d.Seq], d.Start, d.Accepted, more)
		}
		for _, c := range p.Chunks {
			say("  chunk %d (%s) [%d,%d) last=%v sample=%v logprobs=%d", c.Seq, s.ids[c.Seq], c.Start,
				c.Start+len(c.Tokens), c.Last, c.Sample, c.PromptLogprobs)
			if len(c.Save) > 0 {
				say("    saves blocks %v from %d on%s", c.Save, c.SaveFrom, map[bool]string{true: ", and sums"}[c.Sums])
			}
		}
		for _, x := range p.Index {
			say("  index %d (%s): pieces [%d,%d)", x.Seq, s.ids[x.Seq], x.From, x.From+x.Pieces)
		}
	}
	return b.String()
}

func describeSnapshot(v Snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d placed=%v draining=%v step %d in flight=%v: %d rows of %d sequences, %.0f tokens/s %s\n",
		v.Epoch, v.Placed, v.Draining, v.Step, v.InFlight, v.BatchRows, v.BatchSequences, v.TokensPerSecond, v.Unplaced)
	if o := v.Outage; o.Streams > 0 {
		fmt.Fprintf(&b,
			"the end of epoch %d cut off %d: %d wait, %d failed, %d ms silent; %d recomputed, %d replayed, %d restored, %d from replicas\n",
			o.Epoch, o.Streams, o.Waiting, o.Failed, o.SilentMillis, o.Recomputed, o.Replayed, o.Restored, o.Copies)
	}
	for _, k := range v.Sockets {
		fmt.Fprintf(&b, "%s: reserved %d of %d, used %d, freed %d, owns %d\n", k.ID, k.Reserved, k.Budget, k.Used, k.Freed, k.Sequences)
		if k.Shared+k.Evictable > 0 {
			fmt.Fprintf(&b, "    shared %d, to evict %d\n", k.Shared, k.Evictable)
		}
	}
	for _, r := range v.Running {
		fmt.Fprintf(&b, "%s %s on %s: prompt %d, output %d, cached %d, %d bytes\n", r.ID, r.State, r.Owner, r.Prompt, r.Output, r.Cached, r.Bytes)
	}
	for _, r := range v.Waiting {
		fmt.Fprintf(&b, "%s waits: %s\n", r.ID, r.Reason)
	}
	return b.String()
}
