package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// After a crash JetStream truncates each message block at its first damaged record, so one flipped
// bit loses all later records of the block. salvage runs before that. It removes the damaged bytes
// from a block and saves them in a file, so that JetStream can read the rest. It applies to
// single-copy stores; a replica gets lost records from the others.

// damagedDir holds the removed bytes, inside the data directory.
const damagedDir = "damaged"

// damaged describes a range of bytes that was removed from a block. The file with the same name and
// suffix .bin has the bytes.
type damaged struct {
	At      time.Time `json:"at"`
	Stream  string    `json:"stream"`
	Block   int       `json:"block"`
	Offset  int       `json:"offset"`
	Bytes   int       `json:"bytes"`
	Mended  bool      `json:"mended"`            // the record was restored
	Lost    []string  `json:"lost,omitempty"`    // journals without any record left
	Touched []string  `json:"touched,omitempty"` // journals that lost some of their records
}

// blockFile is a block with damage.
type blockFile struct {
	path   string
	stream string
	index  int
	data   []byte
	pieces []piece
}

// salvage repairs the store in a directory before its server starts. dir is the data directory.
func salvage(dir, store string, log *slog.Logger) (jobs.Salvage, error) {
	streams, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", "*"))
	if err != nil {
		return jobs.Salvage{}, fmt.Errorf("store: %w", err)
	}
	var fresh []damaged
	for _, path := range streams {
		found, err := salvageStream(filepath.Join(dir, damagedDir), path, log)
		if err != nil {
			return jobs.Salvage{}, err
		}
		fresh = append(fresh, found...)
	}
	return report(filepath.Join(dir, damagedDir), fresh, log)
}

// subjectsOf returns the subject prefix of a stream of journals, or "".
func subjectsOf(stream string) string {
	return map[string]string{journal.JobStream: journal.JobSubjects, journal.FileStream: journal.FileSubjects}[stream]
}

func salvageStream(aside, path string, log *slog.Logger) ([]damaged, error) {
	stream := filepath.Base(path)
	files, err := blockFiles(filepath.Join(path, "msgs"))
	if err != nil || len(files) == 0 {
		return nil, err
	}
	newest := uint64(0)
	var bad []*blockFile
	for i, index := range files {
		f := &blockFile{path: filepath.Join(path, "msgs", strconv.Itoa(index)+".blk"), stream: stream, index: index}
		if f.data, err = os.ReadFile(f.path); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		b, err := newBlock(stream, index, subjectsOf(stream), f.data)
		if err != nil {
			return nil, err
		}
		f.pieces, newest = b.scan(newest, i == len(files)-1)
		if slices.ContainsFunc(f.pieces, func(p piece) bool { return p.state == pieceRepaired || p.state == pieceLost }) {
			bad = append(bad, f)
		}
	}
	if len(bad) == 0 {
		return nil, nil
	}
	left, err := journalsLeft(path, files)
	if err != nil {
		return nil, err
	}
	var out []damaged
	for _, f := range bad {
		found, err := f.setAside(aside, left)
		if err == nil {
			err = f.rewrite()
		}
		if err != nil {
			return nil, fmt.Errorf("store: %s is damaged, and the damaged bytes cannot be saved in %s: %w. Nothing was changed; free space there "+
				"and restart", f.path, aside, err)
		}
		for _, d := range found {
			log.Error("a record of the store is damaged on disk", "stream", d.Stream, "block", d.Block, "offset", d.Offset, "bytes", d.Bytes,
				"mended", d.Mended, "lost", d.Lost, "kept_in", filepath.Join(aside, d.name()+".bin"))
		}
		out = append(out, found...)
	}
	return out, nil
}

// blockFiles returns the numbers of the blocks in a folder, in order.
func blockFiles(dir string) (out []int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".blk"); ok {
			if n, err := strconv.Atoi(name); err == nil {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// leftover is the rest of a stream: its journals, and the numbers of deleted messages.
type leftover struct {
	journals map[string]bool
	deleted  map[uint64]bool
}

// owner returns the journal of a lost record. If its subject is damaged, an intact message proves
// which journal it belongs to.
func (l *leftover) owner(n lostName) string {
	if l.journals[n.name] || n.message == nil || len(n.message)*len(l.journals) > 1<<30 {
		return n.name
	}
	for name := range l.journals {
		if _, err := journal.Decode(name, n.message); err == nil {
			return name
		}
	}
	return n.name
}

// journalsLeft reads a stream as it will be after salvage.
func journalsLeft(path string, files []int) (leftover, error) {
	stream := filepath.Base(path)
	out := leftover{journals: map[string]bool{}, deleted: map[uint64]bool{}}
	type message struct {
		seq  uint64
		name string
	}
	var all []message
	names := map[string]string{} // one string for all messages of a journal
	newest := uint64(0)
	for i, index := range files {
		data, err := os.ReadFile(filepath.Join(path, "msgs", strconv.Itoa(index)+".blk"))
		if err != nil {
			return out, fmt.Errorf("store: %w", err)
		}
		b, err := newBlock(stream, index, subjectsOf(stream), data)
		if err != nil {
			return out, err
		}
		var pieces []piece
		pieces, newest = b.scan(newest, i == len(files)-1)
		for _, p := range pieces {
			switch r := &p.record; {
			case p.state == pieceLost || p.state == pieceTorn:
			case !r.plain():
				out.deleted[r.number()] = true
			default:
				name := strings.TrimPrefix(string(r.subject), subjectsOf(stream))
				if names[name] == "" {
					names[name] = name
				}
				all = append(all, message{r.seq, names[name]})
			}
		}
	}
	for _, m := range all {
		if !out.deleted[m.seq] {
			out.journals[m.name] = true
		}
	}
	return out, nil
}

func (d *damaged) name() string {
	return fmt.Sprintf("%s-%d-%d-%s", d.Stream, d.Block, d.Offset, d.At.UTC().Format("20060102T150405.000"))
}

// setAside saves the damaged bytes of a block in files.
func (f *blockFile) setAside(dir string, left leftover) (out []damaged, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	for _, p := range f.pieces {
		if p.state != pieceRepaired && p.state != pieceLost {
			continue
		}
		d := damaged{At: time.Now(), Stream: f.stream, Block: f.index, Offset: p.at, Bytes: p.end - p.at, Mended: p.state == pieceRepaired}
		for _, n := range p.names {
			name := left.owner(n)
			switch {
			case left.deleted[n.seq]: // dropped before
			case left.journals[name]:
				d.Touched = append(d.Touched, name)
			default:
				d.Lost = append(d.Lost, n.name)
			}
		}
		text, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		path := filepath.Join(dir, d.name())
		if err := errors.Join(wholefile.Write(path+".bin", f.data[p.at:p.end], 0o600), wholefile.Write(path+".json", text, 0o600)); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// rewrite replaces a block by its valid parts. It first removes the index of the stream, which
// describes the old block. JetStream rebuilds it.
func (f *blockFile) rewrite() error {
	var out bytes.Buffer
	for _, p := range f.pieces {
		switch p.state {
		case pieceWhole:
			out.Write(f.data[p.at:p.end])
		case pieceRepaired, pieceLost:
			out.Write(p.instead)
		}
	}
	if err := os.Remove(filepath.Join(filepath.Dir(f.path), "index.db")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("store: %w", err)
	}
	return wholefile.Write(f.path, out.Bytes(), 0o600)
}

// report returns the damage for the job store: that of this start, and that of earlier starts within
// the retention of ended jobs.
func report(dir string, fresh []damaged, log *slog.Logger) (out jobs.Salvage, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return out, fmt.Errorf("store: %w", err)
	}
	lost := map[string]bool{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		var d damaged
		if err != nil || json.Unmarshal(text, &d) != nil {
			log.Warn("the description of damaged bytes cannot be read", "file", path, "error", cmp.Or(err, errors.New("it does not decode")))
			continue
		}
		if d.Stream == journal.JobStream && time.Since(d.At) < jobs.DefaultRetention {
			for _, name := range d.Lost {
				lost[name] = true
			}
		}
	}
	out.Lost = slices.Sorted(maps.Keys(lost))
	for _, d := range fresh {
		if d.Stream == journal.JobStream {
			out.New = append(out.New, d.Lost...)
			out.Touched = append(out.Touched, d.Touched...)
		}
		if !d.Mended && len(d.Lost)+len(d.Touched) == 0 && d.Bytes > emptyRecord {
			out.Notes = append(out.Notes,
				fmt.Sprintf("%d bytes of the stream %s were damaged; their content is unknown. They are saved in %s/%s.bin",
					d.Bytes, d.Stream, damagedDir, d.name()))
		}
	}
	return out, nil
}
