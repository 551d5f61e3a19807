package natsbus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective"
)

// A rank process is this test binary with the variable below:
// rank,size,seed,mode[,op,values,rounds]. It prints "route ADDR", "ready", then lines of its mode,
// and ends when its standard input closes.
const rankProcessVar = "SHOAL_NATSBUS_RANK"

// processDeadline suffices for a rank that is starved on a busy machine.
const processDeadline = 10 * time.Second

func rankProcess() int {
	if err := runRank(strings.Split(os.Getenv(rankProcessVar), ",")); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

func runRank(arg []string) error {
	number := func(i int) int { n, _ := strconv.Atoi(arg[i]); return n }
	rank, size, mode := number(0), number(1), arg[3]
	cfg := Config{Name: fmt.Sprintf("node-%d", rank), Secret: "s3", Log: quiet, HungAfter: patience}
	if arg[2] != "" {
		cfg.Seeds = []string{arg[2]}
	}
	s, err := Start(cfg)
	if err != nil {
		return err
	}
	defer s.Shutdown()
	fmt.Println("route", s.RouteAddr())
	tr, err := s.Transport(TransportConfig{Group: "g", Epoch: 1, Rank: rank, Size: size})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := tr.Ready(ctx); err != nil {
		return err
	}
	deadline := processDeadline
	if mode == "notice" { // a lost connection must fail the group before the deadline
		deadline = 2 * patience
	}
	g, err := collective.NewGroup(collective.Config{Rank: rank, Size: size, Epoch: 1, Deadline: deadline}, tr)
	if err != nil {
		return err
	}
	defer g.Close()
	fmt.Println("ready")
	if mode == "bench" {
		return benchRank(g, arg[4], number(5), number(6))
	}
	w := newRankWork(rank, size, 5000)
	for i := uint64(1); ; i++ {
		err := w.reduce(g, collective.Op(0, i))
		if err == nil {
			err = w.gather(g, collective.Op(1, i))
		}
		if i == 20 {
			fmt.Println("warm")
		}
		if err != nil {
			var ranks []int
			if e, ok := errors.AsType[*collective.OpError](err); ok {
				ranks = e.Ranks
			}
			fmt.Printf("failed %v %v %v\n", errors.Is(err, collective.ErrPeerTimeout), errors.Is(err, collective.ErrPeerLost), ranks)
			io.Copy(io.Discard, os.Stdin) // a rank that exits early would look dead to slower ones
			return nil
		}
	}
}

func benchRank(g *collective.Group, op string, values, rounds int) error {
	w := newRankWork(g.Rank(), g.Size(), values)
	run := w.reduceOnly
	if op == "gather" {
		run = w.gatherOnly
	}
	took := make([]time.Duration, rounds)
	for i := range rounds + rounds/10 {
		t := time.Now()
		if err := run(g, collective.Op(0, uint64(i+1))); err != nil {
			return err
		}
		took[max(0, i-rounds/10)] = time.Since(t)
	}
	slices.Sort(took)
	fmt.Printf("took %d %d\n", took[rounds/2].Nanoseconds(), took[rounds*99/100].Nanoseconds())
	// No rank exits before all have received the last message.
	done := make(chan error, 1)
	g.Barrier(collective.Op(0, 1<<40), func(err error) { done <- err })
	<-done
	time.Sleep(50 * time.Millisecond)
	return nil
}

func (w *rankWork) gatherOnly(g *collective.Group, op collective.OpID) error {
	done := make(chan error, 1)
	g.AllGather(op, w.shard, w.recv, func(err error) { done <- err })
	return <-done
}

func (w *rankWork) reduceOnly(g *collective.Group, op collective.OpID) error {
	done := make(chan error, 1)
	g.AllReduceTree(op, workUnits, w.nodes, w.mine, w.out, func(err error) { done <- err })
	return <-done
}

// child is one rank process.
type child struct {
	cmd   *exec.Cmd
	in    io.Closer
	lines chan string
}

func startRanks(t testing.TB, size int, mode string) []*child {
	t.Helper()
	var all []*child
	seed := ""
	for r := range size {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%d,%s,%s", rankProcessVar, r, size, seed, mode))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c := &child{cmd, in, make(chan string, 64)}
		go func() {
			defer close(c.lines)
			for in := bufio.NewScanner(out); in.Scan(); {
				c.lines <- in.Text()
			}
		}()
		t.Cleanup(func() {
			cmd.Process.Kill()
			for range c.lines {
			}
			cmd.Wait()
		})
		all = append(all, c)
		if addr := c.expect(t, "route"); r == 0 {
			seed = addr
		}
	}
	for _, c := range all {
		c.expect(t, "ready")
	}
	return all
}

// expect waits for a line that begins with word and returns the rest.
func (c *child) expect(t testing.TB, word string) string {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("a rank ended before it printed %q", word)
			}
			if rest, found := strings.CutPrefix(line, word); found {
				return strings.TrimSpace(rest)
			}
			if strings.HasPrefix(line, "error") || strings.HasPrefix(line, "failed") {
				t.Fatalf("waiting for %q: %s", word, line)
			}
		case <-limit:
			t.Fatalf("a rank did not print %q", word)
		}
	}
}

// TestProcesses: four processes reduce and gather, and one is killed or stopped. The others get a
// typed error that names it, long before the deadline, and exit.
func TestProcesses(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		signal     syscall.Signal
		want       string
	}{
		{"kill, connection", "work", syscall.SIGKILL, "false true [2]"},
		{"kill, notice", "notice", syscall.SIGKILL, "false true [2]"},
		{"stop, deadline", "work", syscall.SIGSTOP, "true false [2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			ranks := startRanks(t, 4, c.mode)
			for _, r := range ranks {
				r.expect(t, "warm")
			}
			ranks[2].cmd.Process.Signal(c.signal)
			at := time.Now()
			for i, r := range ranks {
				if i == 2 {
					continue
				}
				got := r.expect(t, "failed")
				// If only the deadline detects the loss, a rank that was ahead also blames the ranks
				// that wait for the lost rank.
				if got != c.want && !(c.want == "true false [2]" && strings.HasPrefix(got, "true false") && strings.Contains(got, "2")) {
					t.Errorf("rank %d failed with %q, want %q", i, got, c.want)
				}
			}
			t.Logf("survivors knew after %v", time.Since(at))
			for i, r := range ranks {
				if i == 2 {
					continue
				}
				r.in.Close()
				for range r.lines {
				}
				if err := r.cmd.Wait(); err != nil {
					t.Errorf("rank %d: %v", i, err)
				}
			}
		})
	}
}

// BenchmarkProcesses measures operations run back to back by N processes on the cores of one
// machine, so in effect CPU time per operation: median and p99 at rank 0. Compare with the tables
// of raw NATS in the decisions folder.
func BenchmarkProcesses(b *testing.B) {
	for _, n := range []int{2, 4} {
		for _, op := range []string{"gather", "reduce"} {
			for _, kb := range []int{1, 16, 256} {
				b.Run(fmt.Sprintf("%s/N=%d/%dK", op, n, kb), func(b *testing.B) {
					rounds := max(b.N, 20)
					ranks := startRanks(b, n, fmt.Sprintf("bench,%s,%d,%d", op, kb<<10/4, rounds))
					var p50, p99 float64
					fmt.Sscan(ranks[0].expect(b, "took"), &p50, &p99)
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(p50/1e3, "p50-us")
					b.ReportMetric(p99/1e3, "p99-us")
				})
			}
		}
	}
}
