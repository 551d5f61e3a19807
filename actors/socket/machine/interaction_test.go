package machine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts in testdata again")

// Each file in testdata is a transcript of one socket: a command, "----", the machine's reply. After an
// intended change, run with -rewrite and review the diff.
func TestInteraction(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d transcripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &story{m: NewMachine()}
			var out []string
			for part := range strings.SplitSeq(strings.TrimRight(string(text), "\n"), "\n\n") {
				command, _, _ := strings.Cut(part, "\n----")
				lines := strings.Split(command, "\n")
				if last := lines[len(lines)-1]; !strings.HasPrefix(last, "#") {
					command += "\n----\n" + strings.TrimRight(s.run(last), "\n")
				}
				out = append(out, command)
			}
			got := strings.Join(out, "\n\n") + "\n"
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s: the transcript has changed (-rewrite accepts it):\n%s", file, got)
			}
		})
	}
}

// story runs the commands of a file on one machine.
type story struct {
	m     *Machine
	epoch uint32
	work  *Work
}

// run executes one command: a name, then key=value pairs. Numbers within a value are separated by
// colons.
func (s *story) run(line string) string {
	words := strings.Fields(line)
	num := func(key string, otherwise int) int {
		for _, w := range words[1:] {
			if v, ok := strings.CutPrefix(w, key+"="); ok {
				return numbers(v)[0]
			}
		}
		return otherwise
	}
	s.epoch = uint32(num("epoch", int(s.epoch)))
	ok := !slices.Contains(words, "failed")
	switch words[0] {
	case "load":
		effects, err := s.m.Load(s.epoch, uint64(num("coordinator", 7)),
			Limits{Rank: num("rank", 0), Ranks: num("of", 2), Vocab: 100, Positions: 1000, Rows: 64,
				Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}, Parse: kvpolicy.Parse})
		return s.say(effects, err)
	case "loaded":
		out := s.say(nil, s.m.Loaded(s.epoch, ok))
		for _, h := range s.m.Held() {
			out += fmt.Sprintf("held %d: %d tokens, %d staged, prompt %d, replica=%v\n", h.Seq, h.Tokens, h.Staged, h.Prompt, h.Replica)
		}
		return out
	case "join":
		return s.say(nil, s.m.Join(s.epoch))
	case "joined":
		return s.say(nil, s.m.Joined(s.epoch, ok))
	case "step":
		w, err := s.m.Plan(s.plan(uint64(num("step", 0)), words[1:]))
		if err != nil {
			return s.say(nil, err)
		}
		s.work = w
		return s.say(w.First, nil) + s.describe(w)
	case "ended":
		return s.say(nil, s.m.End(s.work, ok))
	case "release":
		effects, err := s.m.Release(&proto.ReleaseRequest{Epoch: s.epoch, Seqs: []uint64{uint64(num("seq", 0))},
			Evict: []uint64{uint64(num("block", 0))}, Keep: s.plan(0, words[1:]).Keep})
		return s.say(effects, err)
	case "restore":
		r := &proto.PrefixRequest{Epoch: s.epoch, From: uint32(num("from", 0)), Step: uint64(num("step", 0)),
			Seq: uint64(num("seq", 0)), Owner: uint32(num("owner", 0))}
		for _, w := range words[1:] {
			if v, ok := strings.CutPrefix(w, "blocks="); ok {
				for _, id := range numbers(v) {
					r.Blocks = append(r.Blocks, uint64(id))
				}
			}
		}
		r.Keys = make([]byte, 32*num("keys", len(r.Blocks)+1))
		return s.say(s.m.Restore(r))
	case "job":
		return s.say(nil, s.m.Job(s.epoch))
	case "jobdone":
		return s.say(s.m.JobDone(s.epoch,
			map[uint64]*Kept{uint64(num("seq", 0)): {Prompt: num("tokens", 0), Tokens: num("tokens", 0), Policy: kvcache.Full()}}), nil)
	case "retire":
		effects, left := s.m.Retire(s.epoch)
		return fmt.Sprintf("left %v\n", left) + s.say(effects, nil)
	case "stop":
		return s.say(s.m.Stop(), nil)
	}
	panic("unknown command " + line)
}

func (s *story) say(effects []Effect, err error) string {
	var b strings.Builder
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	for _, f := range effects {
		fmt.Fprintln(&b, f)
	}
	fmt.Fprintf(&b, "-> %s, epoch %d, step %d\n", s.m.Phase, s.m.Epoch, s.m.State.Step)
	return b.String()
}

func (s *story) describe(w *Work) string {
	var b strings.Builder
	for _, k := range w.Copies {
		fmt.Fprintf(&b, "copy %d: %d tokens, then %d rows\n", k.Seq, k.Tokens, k.Rows)
	}
	if w.Passes > 1 {
		fmt.Fprintf(&b, "%d passes\n", w.Passes)
	}
	for i, r := range w.Runs {
		wanted := 0
		for o := range w.Wanted() {
			if o.Run == i {
				wanted++
			}
		}
		fmt.Fprintf(&b, "run %d: [%d,%d) prefill=%v last=%v owner %d replica %d, %d wanted\n", r.Seq,
			r.Start, r.Start+len(r.Tokens), r.Prefill, r.Last, r.Owner, s.m.seqs[r.Seq].Replica, wanted)
	}
	return b.String()
}

// plan reads open=seq:owner:prompt:policy, resume=seq:owner:prompt:tokens:1+replica,
// read=seq:start:n (read! when it is the last), decode=seq:start:n:accepted, passes=n,
// copy=seq:rank, drop=seq, release=seq; begins=block:... of the last open, saves=from:block:...
// of the last chunk (and sums), evict=block, drops=block (its sums), keep=seq:from:block:...
func (s *story) plan(step uint64, words []string) *proto.StepRequest {
	r := &proto.StepRequest{Epoch: s.epoch, Step: step}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		n := append(numbers(value), make([]int, 5)...)
		seq := uint64(n[0])
		tokens := func(n int) []uint32 { return make([]uint32, n) }
		sampling := &proto.Sampling{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
		switch key {
		case "open", "resume":
			o := &proto.Open{Seq: seq, Owner: uint32(n[1]), PromptTokens: uint32(n[2]), Policy: "full", Sampling: sampling}
			if parts := strings.SplitN(value, ":", 4); key == "open" && len(parts) == 4 {
				o.Policy = parts[3]
			}
			if key == "resume" {
				o.Resume, o.Replica = tokens(n[3]), uint32(n[4])
			}
			r.Open = append(r.Open, o)
		case "read", "read!":
			last := key == "read!"
			r.Chunks = append(r.Chunks, &proto.Chunk{Seq: seq, Start: uint32(n[1]), Tokens: tokens(n[2]), Prefill: true, Last: last, Sample: last})
		case "decode":
			r.Chunks = append(r.Chunks, &proto.Chunk{Seq: seq, Start: uint32(n[1]), Tokens: tokens(n[2]), Accepted: uint32(n[3]), Sample: true})
		case "passes":
			r.Passes = uint32(n[0])
		case "begins":
			o := r.Open[len(r.Open)-1]
			for _, id := range numbers(value) {
				o.Shared, o.Prefix = append(o.Shared, uint64(id)), append(o.Prefix, tokens(tensor.BlockSlots)...)
			}
		case "saves":
			c := r.Chunks[len(r.Chunks)-1]
			c.SaveFrom = uint32(n[0])
			for _, id := range numbers(value)[1:] {
				c.Save = append(c.Save, uint64(id))
			}
		case "keep":
			k := &proto.Keep{Seq: seq, SaveFrom: uint32(n[1])}
			for _, id := range numbers(value)[2:] {
				k.Save = append(k.Save, uint64(id))
			}
			r.Keep = append(r.Keep, k)
		case "sums":
			r.Chunks[len(r.Chunks)-1].Sums = true
		case "drops":
			r.DropExtras = append(r.DropExtras, seq)
		case "evict":
			r.Evict = append(r.Evict, seq)
		case "copy":
			r.Copy = append(r.Copy, &proto.Copy{Seq: seq, Replica: uint32(n[1])})
		case "drop":
			r.DropReplica = append(r.DropReplica, seq)
		case "release":
			r.Release = append(r.Release, seq)
		}
	}
	return r
}

func numbers(text string) (list []int) {
	for part := range strings.SplitSeq(text, ":") {
		n, _ := strconv.Atoi(part)
		list = append(list, n)
	}
	return list
}
