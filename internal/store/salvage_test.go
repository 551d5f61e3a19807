package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/batches"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
)

var quiet = slog.New(slog.DiscardHandler)

// openJobs opens the log of jobs in a data directory, as Store does.
func openJobs(t *testing.T, dir string) (l journal.Log, close func()) {
	t.Helper()
	nc, stop := natstest.Alone(t, filepath.Join(dir, "jetstream"), 1<<30)
	l, err := journal.OpenJetStream(t.Context(), nc, 64<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	return l, func() { _ = l.Close(); stop() }
}

// written maps each journal to the records that were written.
type written map[string][][]byte

// killed returns a data directory as kill -9 leaves it (a copy of the files of a running server),
// or after a clean stop. It has jobs with one and with several records, a dropped one, and an
// anchor.
func killed(t *testing.T, clean bool) (dir string, all written) {
	t.Helper()
	live := t.TempDir()
	l, end := openJobs(t, live)
	all = written{}
	rng := rand.New(rand.NewPCG(1, 2))
	add := func(name string, records int) {
		w := journal.NewWriter(name)
		for i := range records {
			r := journal.Record{Kind: jobs.KindAccept, At: int64(i), Payload: fmt.Appendf(nil, `{"endpoint":"e","body":"%s"}`, strings.Repeat("x", rng.IntN(200)))}
			if i > 0 {
				r = journal.Record{Kind: jobs.KindStart, Attempt: uint32(i)}
			}
			if _, err := w.Append(t.Context(), l, &r, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 12 {
		add(fmt.Sprintf("job-%032x", rng.Uint64()), 1+i%3)
	}
	add("resp_abcdefgh", 2)
	add("batch_0123456789", 1)
	add("job-dropped", 3)
	if err := l.Drop(t.Context(), "job-dropped"); err != nil {
		t.Fatal(err)
	}
	add("job-last", 2)
	if err := l.Scan(t.Context(), func(name string, _ uint64, data []byte) error {
		all[name] = append(all[name], bytes.Clone(data))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if clean {
		end()
		return live, all
	}
	defer end()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	return dir, all
}

func theBlock(t *testing.T, dir string) (path string, data []byte) {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(dir, "jetstream", "jetstream", "*", "streams", journal.JobStream, "msgs", "*.blk"))
	if len(found) != 1 {
		t.Fatalf("blocks: %v", found)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return found[0], data
}

// TestEveryBitOfABlock flips one bit of each byte of a block, or every bit in the full form. All
// other records are found, none is invented, and the rewritten block is valid.
func TestEveryBitOfABlock(t *testing.T) {
	dir, all := killed(t, false)
	_, data := theBlock(t, dir)
	pieces := func(data []byte) []piece {
		b, err := newBlock(journal.JobStream, 1, journal.JobSubjects, data)
		if err != nil {
			t.Fatal(err)
		}
		out, _ := b.scan(0, true)
		return out
	}
	clean := pieces(data)
	for _, p := range clean {
		if p.state != pieceWhole {
			t.Fatalf("undamaged: %+v", p)
		}
	}
	count := map[pieceState]int{}
	for i := range data {
		for bit := range 8 {
			if (i+3*bit)%8 > 0 && os.Getenv("SHOAL_E2E") != "full" {
				continue
			}
			d := bytes.Clone(data)
			d[i] ^= 1 << bit
			hit := slices.IndexFunc(clean, func(p piece) bool { return i < p.end })
			var whole bytes.Buffer
			bad := 0
			for k, p := range pieces(d) {
				count[p.state]++
				switch p.state {
				case pieceWhole:
					whole.Write(d[p.at:p.end])
					continue
				case pieceRepaired:
					if was := data[clean[hit].at:clean[hit].end]; !bytes.Equal(p.instead, was) && !sameMessage(p, clean[hit]) {
						t.Fatalf("byte %d bit %d: repaired to %q, was %q", i, bit, p.instead, was)
					}
				case pieceLost:
					r := clean[hit].record
					if name := strings.TrimPrefix(string(r.subject), journal.JobSubjects); len(p.names) != 1 ||
						p.names[0].name != name || p.names[0].seq != r.seq {
						t.Fatalf("byte %d bit %d of %s (message %d): lost %+v", i, bit, name, r.seq, p.names)
					}
				}
				bad++
				whole.Write(p.instead)
				if k != hit || p.at != clean[hit].at || p.end != clean[hit].end {
					t.Fatalf("byte %d bit %d: piece %d [%d,%d) is damaged, hit was %d [%d,%d)", i, bit, k, p.at, p.end, hit, clean[hit].at, clean[hit].end)
				}
			}
			if bad != 1 {
				t.Fatalf("byte %d bit %d: %d pieces are damaged", i, bit, bad)
			}
			for k, p := range pieces(whole.Bytes()) {
				if p.state != pieceWhole || p.record.seq&^uint64(seqErased) != clean[k].record.seq {
					t.Fatalf("byte %d bit %d: piece %d of the repaired file is %+v", i, bit, k, p)
				}
			}
		}
	}
	t.Logf("%d journals, %d bytes: %d records repaired, %d lost, %d torn", len(all), len(data),
		count[pieceRepaired], count[pieceLost], count[pieceTorn])
	if count[pieceTorn] > 0 || count[pieceLost] == 0 || count[pieceRepaired] == 0 {
		t.Error(count)
	}
}

// sameMessage ignores the time, the only field that no checksum verifies.
func sameMessage(a, b piece) bool {
	return a.record.seq == b.record.seq && bytes.Equal(a.record.subject, b.record.subject) && bytes.Equal(a.record.message, b.record.message)
}

// TestSalvage damages the files of a killed store and opens it with the real server. Undamaged
// records are identical, and the number of lost jobs is correct.
func TestSalvage(t *testing.T) {
	t.Run("killed", func(t *testing.T) { testSalvage(t, false) })
	t.Run("ended", func(t *testing.T) { testSalvage(t, true) })
}

func testSalvage(t *testing.T, clean bool) {
	dir, all := killed(t, clean)
	path, data := theBlock(t, dir)
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBlock(journal.JobStream, 1, journal.JobSubjects, data)
	if err != nil {
		t.Fatal(err)
	}
	pieces, _ := b.scan(0, true)
	third := pieces[3]
	body := func(p piece) int { return bytes.Index(data[p.at:p.end], []byte(journal.Magic)) + p.at }
	flip := func(at ...int) []byte {
		d := bytes.Clone(data)
		for _, i := range at {
			d[i] ^= 1 << (i % 8)
		}
		return d
	}
	for name, d := range map[string][]byte{
		"at 0.2 %":           flip(len(data) / 500),
		"at 30 %":            flip(len(data) * 3 / 10),
		"at 30 % and 60 %":   flip(len(data)*3/10, len(data)*6/10),
		"two neighbours":     flip(body(pieces[4])+70, body(pieces[5])+70),
		"three neighbours":   flip(body(pieces[4])+70, body(pieces[5])+70, body(pieces[6])+70),
		"length":             flip(third.at),
		"high length":        flip(third.at + 3),
		"sequence":           flip(third.at + 4),
		"time":               flip(third.at + 12),
		"length of subject":  flip(third.at + 20),
		"prefix of subject":  flip(third.at + 24),
		"name of subject":    flip(third.at + 40),
		"magic":              flip(body(third)),
		"hash of the record": flip(third.end - blockSum - 3),
		"checksum":           flip(third.end - 2),
		"first record":       flip(body(pieces[0]) + 66),
		"last record":        flip(body(pieces[len(pieces)-1]) + 66),
		"64 bytes of zeros":  append(append(bytes.Clone(data[:third.at+50]), make([]byte, 64)...), data[third.at+114:]...),
		"500 bytes of zeros": append(append(bytes.Clone(data[:third.at+50]), make([]byte, 500)...), data[third.at+550:]...),
		"bytes are missing":  append(bytes.Clone(data[:third.at+50]), data[third.at+57:]...),
		"bytes are added":    append(append(bytes.Clone(data[:third.at+50]), "abcdefg"...), data[third.at+50:]...),
		"all is zero":        make([]byte, len(data)),
	} {
		if clean && !slices.Contains([]string{"at 30 %", "first record", "last record", "length of subject", "500 bytes of zeros"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			at := t.TempDir()
			if err := os.CopyFS(at, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, rel), d, 0o600); err != nil {
				t.Fatal(err)
			}
			most := len(all)
			switch {
			case strings.HasPrefix(name, "three"):
				most = 3
			case strings.HasPrefix(name, "two"), strings.HasPrefix(name, "at 30 % and"):
				most = 2
			case !strings.HasPrefix(name, "500") && name != "all is zero":
				most = 1
			}
			for range 2 { // the result is the same after a restart
				known, err := salvage(at, filepath.Join(at, "jetstream"), quiet)
				if err != nil {
					t.Fatal(err)
				}
				lost := holds(t, at, all, known)
				if lost > most {
					t.Errorf("%d jobs are lost", lost)
				}
			}
			kept := 0
			files, _ := filepath.Glob(filepath.Join(at, damagedDir, "*.bin"))
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil || !bytes.Contains(d, b) {
					t.Errorf("%s differs from the removed bytes: %v", f, err)
				}
				kept += len(b)
			}
			if kept == 0 {
				t.Error("nothing was set aside")
			}
			l, end := openJobs(t, at) // the store accepts writes
			defer end()
			w := journal.NewWriter("job-after")
			if _, err := w.Append(t.Context(), l, &journal.Record{Kind: jobs.KindAccept, Payload: []byte(`{}`)}, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// holds compares the content of a store with the written records. It returns the number of lost jobs
// after comparing it with the number of the API.
func holds(t *testing.T, dir string, all written, known jobs.Salvage) (lost int) {
	t.Helper()
	l, end := openJobs(t, dir)
	defer end()
	for name, want := range all {
		var got [][]byte
		if err := l.Read(t.Context(), name, 0, func(_ uint64, data []byte) error {
			got = append(got, bytes.Clone(data))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		job := strings.HasPrefix(name, "job-") || strings.HasPrefix(name, "resp_")
		begins := len(got) <= len(want) && slices.EqualFunc(got, want[:min(len(got), len(want))], bytes.Equal)
		if job && (len(got) == 0 || !begins) {
			lost++
		}
	}
	if got := read(t, l, "job-dropped"); got > 0 {
		t.Errorf("%d records of a job that was dropped are there again", got)
	}
	lines := batches.NewStore(quiet)
	s, err := jobs.NewStore(t.Context(), l, jobs.StoreConfig{Logger: quiet, Peers: []jobs.PeerStore{lines}, Salvage: known})
	if err != nil {
		t.Fatal(err)
	}
	if dead, _ := s.Lost(); dead != lost && len(known.Notes) == 0 && lost < len(all)/2 {
		t.Errorf("clients get %d lost jobs, and %d are lost. %+v %v", dead, lost, known, s.Damage())
	}
	return lost
}

func read(t *testing.T, l journal.Log, name string) (n int) {
	t.Helper()
	if err := l.Read(t.Context(), name, 0, func(uint64, []byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// FuzzBlock: any bytes split into pieces that cover them, and the rewritten block is valid.
func FuzzBlock(f *testing.F) {
	b, err := newBlock(journal.JobStream, 1, journal.JobSubjects, nil)
	if err != nil {
		f.Fatal(err)
	}
	r := journal.Record{Kind: jobs.KindAccept, Payload: []byte(`{}`)}
	one := b.encode(&blockRecord{seq: 1, time: 5, subject: []byte("shoal.jobs.job-a"),
		headers: []byte("NATS/1.0\r\n\r\n"), message: r.Encode("job-a")})
	two := b.encode(&blockRecord{seq: 2, subject: []byte("shoal.jobs.job-b"), message: r.Encode("job-b")})
	deleted := b.encode(&blockRecord{seq: 1 | seqDeleted})
	f.Add(slices.Concat(one, two, deleted))
	f.Add(slices.Concat(one[:70], two, deleted[1:], two[:40]))
	f.Add(slices.Concat(one, []byte("shoal.jobs.job-cSHJ1 and so on, as if there were more than there is"), two))
	f.Add([]byte{30, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		scan := func(data []byte) []piece {
			b, err := newBlock(journal.JobStream, 1, journal.JobSubjects, data)
			if err != nil {
				t.Fatal(err)
			}
			out, _ := b.scan(0, true)
			return out
		}
		at := 0
		var whole []byte
		for _, p := range scan(data) {
			if p.at != at || p.end <= p.at {
				t.Fatalf("a piece [%d,%d) after %d", p.at, p.end, at)
			}
			at = p.end
			if whole = append(whole, p.instead...); p.state == pieceWhole {
				whole = append(whole, data[p.at:p.end]...)
			}
		}
		if at != len(data) {
			t.Fatalf("pieces end at %d of %d bytes", at, len(data))
		}
		for _, p := range scan(whole) {
			if p.state != pieceWhole {
				t.Fatalf("%+v in the repaired file", p)
			}
		}
	})
}

// TestSalvageOfManyBlocks damages the ends of blocks and whole blocks of a stream with several.
func TestSalvageOfManyBlocks(t *testing.T) {
	live, dead := t.TempDir(), t.TempDir()
	l, end := openJobs(t, live)
	all := written{}
	for i := range 24 {
		name := fmt.Sprintf("job-%03d", i)
		w := journal.NewWriter(name)
		for k := range 2 {
			r := journal.Record{Kind: jobs.KindStart, Attempt: uint32(k), Payload: bytes.Repeat([]byte{'a' + byte(i%26)}, 400_000)}
			if k == 0 {
				r.Kind = jobs.KindAccept
				r.Payload = fmt.Appendf(nil, `{"endpoint":"e","body":"%s"}`, r.Payload)
			}
			if _, err := w.Append(t.Context(), l, &r, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Scan(t.Context(), func(name string, _ uint64, data []byte) error {
		all[name] = append(all[name], bytes.Clone(data))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dead, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	end()
	blocks := func(dir string) []string {
		found, _ := filepath.Glob(filepath.Join(dir, "jetstream", "jetstream", "*", "streams", journal.JobStream, "msgs", "*.blk"))
		slices.SortFunc(found, func(a, b string) int { return len(a) - len(b) })
		return found
	}
	if n := len(blocks(dead)); n < 3 {
		t.Fatalf("%d blocks", n)
	}
	flip := func(d []byte, at int) { d[at] ^= 1 }
	for name, damage := range map[string]func(blocks [][]byte){
		"the end of each block": func(blocks [][]byte) {
			for _, d := range blocks {
				flip(d, len(d)-100)
			}
		},
		"the beginning of each block": func(blocks [][]byte) {
			for _, d := range blocks {
				flip(d, 300)
			}
		},
		"the first block":  func(blocks [][]byte) { clear(blocks[0]) },
		"the second block": func(blocks [][]byte) { clear(blocks[1]) },
	} {
		t.Run(name, func(t *testing.T) {
			at := t.TempDir()
			if err := os.CopyFS(at, os.DirFS(dead)); err != nil {
				t.Fatal(err)
			}
			list := blocks(at)
			data := make([][]byte, len(list))
			for i, path := range list {
				var err error
				if data[i], err = os.ReadFile(path); err != nil {
					t.Fatal(err)
				}
			}
			damage(data)
			for i, path := range list {
				if err := os.WriteFile(path, data[i], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			known, err := salvage(at, filepath.Join(at, "jetstream"), quiet)
			if err != nil {
				t.Fatal(err)
			}
			lost := holds(t, at, all, known)
			t.Logf("%d blocks, %d of %d jobs are lost; %+v", len(list), lost, len(all), known)
			if most := map[bool]int{true: len(list), false: len(all)/len(list) + 2}[strings.Contains(name, "each")]; lost > most {
				t.Errorf("%d jobs are lost", lost)
			}
		})
	}
}
