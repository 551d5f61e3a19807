package memory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestArenaLedger(t *testing.T) {
	a := NewArena(10 * 4096)
	defer a.Close()
	b, err := a.Alloc(4096, 7)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Charge(4096); err != nil {
		t.Fatal(err)
	}
	_, err = a.Alloc(4096, 3)
	mustBudget(t, err)
	mustBudget(t, a.Charge(2*4096+1))
	if s := a.Stats(); s.Used != 8*4096 || s.Blocks != 7 || s.Slabs != 1 || s.Budget != 10*4096 {
		t.Errorf("stats %+v", s)
	}
	a.Release(b)
	a.Uncharge(4096)
	if s := a.Stats(); s.Used != 0 || s.Peak != 8*4096 || s.Mapped != 0 || s.Returned != SlabTarget {
		t.Errorf("stats %+v", s)
	}
	for _, c := range []struct{ size, n int }{{0, 1}, {-64, 1}, {100, 1}, {64, -1}} {
		if _, err := a.Alloc(c.size, c.n); err == nil {
			t.Errorf("Alloc(%d, %d) worked", c.size, c.n)
		}
	}
	_, err = a.Alloc(4096, 1<<60)
	mustBudget(t, err)
}

// Compared with a reference: no block is allocated twice, blocks are zeroed, figures agree.
func TestArenaProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		budget := rapid.Int64Range(0, 64<<20).Draw(r, "budget")
		a := NewArena(budget)
		defer a.Close()
		type lot struct {
			blocks [][]byte
			mark   byte
		}
		var out []lot
		var used int64
		for i := range rapid.IntRange(1, 40).Draw(r, "operations") {
			if len(out) > 0 && rapid.Bool().Draw(r, "release") {
				k := rapid.IntRange(0, len(out)-1).Draw(r, "which")
				for _, b := range out[k].blocks {
					if !bytes.Equal(b, bytes.Repeat([]byte{out[k].mark}, len(b))) {
						r.Fatal("a block changed while it was out")
					}
					used -= int64(len(b))
				}
				a.Release(out[k].blocks)
				out = append(out[:k], out[k+1:]...)
				continue
			}
			size, n := rapid.SampledFrom([]int{64, 4096, 192 * 64, 1 << 20, 9 << 19}).Draw(r, "size"), rapid.IntRange(0, 6).Draw(r, "blocks")
			blocks, err := a.Alloc(size, n)
			if want := used+int64(size)*int64(n) > budget; (err != nil) != want {
				r.Fatalf("used %d of %d, asked %d: error %v", used, budget, size*n, err)
			}
			for _, b := range blocks {
				if len(b) != size || cap(b) != size || address(b)%BlockAlign != 0 || len(bytes.Trim(b, "\x00")) != 0 {
					r.Fatal("a block is not zeroed, aligned and of its size")
				}
				copy(b, bytes.Repeat([]byte{byte(i + 1)}, len(b)))
				used += int64(size)
			}
			out = append(out, lot{blocks, byte(i + 1)})
			if a.Used() != used || a.Stats().Mapped < used {
				r.Fatalf("used %d, mapped %d, want %d", a.Used(), a.Stats().Mapped, used)
			}
		}
		for _, l := range out {
			a.Release(l.blocks)
		}
		if s := a.Stats(); s.Used != 0 || s.Mapped != 0 || s.Slabs != 0 {
			r.Fatalf("at the end %+v", s)
		}
	})
}

func TestArenaRefusesForeignBlocks(t *testing.T) {
	a := NewArena(1 << 20)
	defer a.Close()
	b, err := a.Alloc(4096, 2)
	if err != nil {
		t.Fatal(err)
	}
	a.Release(b[:1])
	for name, block := range map[string][]byte{"twice": b[0], "foreign": make([]byte, 4096), "inner": b[1][64:128]} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			a.Release([][]byte{block})
		}()
	}
}

func TestArenaConcurrent(t *testing.T) {
	a := NewArena(8 << 20)
	defer a.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if b, err := a.Alloc(16384, 100); err == nil {
					a.Release(b)
				}
				if s := a.Stats(); s.Used > s.Budget {
					t.Errorf("used %d of %d", s.Used, s.Budget)
				}
			}
		})
	}
	wg.Wait()
	if a.Used() != 0 {
		t.Errorf("%d bytes left", a.Used())
	}
}

// The process's resident memory rises and falls with the ledger.
func TestResidentMemoryFalls(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc/self/status")
	}
	// The rest of the process also allocates, so one of several tries must succeed.
	var why string
	for range 4 {
		debug.FreeOSMemory()
		if why = followsLedger(t); why == "" {
			return
		}
		t.Log(why)
	}
	t.Error(why)
}

func followsLedger(t *testing.T) (why string) {
	const mib = 1 << 20
	a := NewArena(256 * mib)
	defer a.Close()
	before := rss(t)
	var lots [2][][]byte
	for i := range lots {
		blocks, err := a.Alloc(32768, 64*mib/32768)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			for j := 0; j < len(b); j += 4096 {
				b[j] = 1
			}
		}
		lots[i] = blocks
	}
	high := rss(t)
	a.Release(lots[0])
	half := rss(t)
	a.Release(lots[1])
	low := rss(t)
	t.Logf("resident MiB: before %d, both lots %d, one %d, none %d", before/mib, high/mib, half/mib, low/mib)
	if high-before < 120*mib || high-half < 56*mib || high-low < 120*mib {
		return fmt.Sprintf("resident memory did not follow the ledger: %d, %d, %d, %d", before, high, half, low)
	}
	return ""
}

func rss(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("no VmRSS in /proc/self/status")
	return 0
}

// Attention reads blocks in table order. Adjacent blocks let the CPU prefetch.
func TestBlocksComeInOrder(t *testing.T) {
	a := NewArena(1 << 20)
	defer a.Close()
	blocks, err := a.Alloc(4096, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{70, 3, 99, 71, 4, 5, 68} {
		a.Release(blocks[i : i+1])
	}
	again, err := a.Alloc(4096, 8)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{3, 4, 5, 68, 70, 71, 99} {
		if address(again[i]) != address(blocks[want]) {
			t.Errorf("block %d is not the one that was the %dth", i, want)
		}
	}
	if address(again[7]) <= address(blocks[99]) {
		t.Error("a block that was never out came before one that was released")
	}
}

func mustBudget(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ErrBudget) {
		t.Fatalf("got %v, want ErrBudget", err)
	}
}
