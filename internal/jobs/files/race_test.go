package files

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// rivalLog calls rival before the first change of the log, and has no room for content.
type rivalLog struct {
	journal.FileLog
	rival func()
}

func (l *rivalLog) begin() {
	if f := l.rival; f != nil {
		l.rival = nil
		f()
	}
}

func (l *rivalLog) Drop(ctx context.Context, name string) error {
	l.begin()
	return l.FileLog.Drop(ctx, name)
}

func (l *rivalLog) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	l.begin()
	if r, err := journal.Decode(name, data); err == nil && len(r.Payload) > 0 {
		return 0, fmt.Errorf("%w: no room", journal.ErrFull)
	}
	return l.FileLog.Append(ctx, name, after, data)
}

// A process begins to write a file that another one is about to complete, and fails. The complete file stays: its writer
// may have recorded that it is there.
func TestCompletedByAnother(t *testing.T) {
	log, ctx := journaltest.NewMemoryLog(), t.Context()
	f := sharedFiles(t, log)
	x, err := f.local.Put(ctx, input("file-a"), strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	meta, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	other := journal.NewWriter("file-a")
	add := func(r journal.Record) {
		if _, err := other.Append(ctx, log, &r, func(*journal.Record) error { return journal.ErrConflict }); err != nil {
			t.Fatal(err)
		}
	}
	add(journal.Record{Kind: KindChunk, Payload: []byte("text")})
	f.log = &rivalLog{log, func() { add(journal.Record{Kind: KindFile, Payload: meta}) }}
	if got, err := f.Put(ctx, input("file-a"), strings.NewReader("text")); err != nil || got.SHA256 != x.SHA256 {
		t.Errorf("%+v, %v", got, err)
	}
	f.log = log
	if text, err := bytesOf(t, f, "file-a"); err != nil || text != "text" {
		t.Errorf("%q, %v", text, err)
	}
}
