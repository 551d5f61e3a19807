package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// Kinds of a file's records.
const (
	KindChunk journal.Kind = 24 // a piece of the content
	KindFile  journal.Kind = 25 // its description, after the last piece: the file is there
)

const (
	chunkBytes = 1 << 20
	// abandonLimit bounds taking back half a file.
	abandonLimit = 5 * time.Second
	// fileLimit bounds writing one file to the log, and fetching it from there.
	fileLimit = 5 * time.Minute
)

// Shared keeps files in a log that several processes have copies of, so that
// whoever takes over has them: a file is a journal of chunks, and its description
// comes last. A folder of this process's own holds copies of what passed through
// it; the log alone says which files there are.
type Shared struct {
	log   journal.FileLog
	local *Folder
}

// OpenShared opens the files of a log with a folder for copies. Copies of
// files that the log does not know any more are removed, and so are files of
// which the log has half: their writer died, or hears of it.
func OpenShared(ctx context.Context, l journal.FileLog, dir string) (*Shared, error) {
	local, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	f := &Shared{log: l, local: local}
	copies, err := local.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range copies {
		if _, err := f.Get(ctx, x.ID); errors.Is(err, ErrNone) {
			err = local.Delete(ctx, x.ID)
			if err != nil {
				return nil, err
			}
		} else if err != nil {
			return nil, err
		}
	}
	ids, err := l.Journals(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := f.abandon(ctx, id); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// abandon removes half a file. Should somebody write it still, either he ends it
// first and it stays, or his next record finds another one in its place.
func (f *Shared) abandon(ctx context.Context, id string) error {
	seq, data, err := f.log.Last(ctx, id)
	if err != nil || data == nil {
		return err
	}
	if r, err := journal.Decode(id, data); err != nil || r.Kind == KindFile {
		return nil //nolint:nilerr // damage is told to whoever reads it
	}
	end := journal.Record{Kind: KindChunk}
	if _, err := f.log.Append(ctx, id, seq, end.Encode(id)); err != nil {
		if errors.Is(err, journal.ErrConflict) {
			return nil
		}
		return err
	}
	return f.log.Drop(ctx, id)
}

// patient gives up on one write after a while, so that it is looked for and
// written again: what is sent while the log's leader is elected is lost.
type patient struct{ journal.FileLog }

const chunkLimit = 10 * time.Second

func (l patient) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkLimit)
	defer cancel()
	return l.FileLog.Append(ctx, name, after, data)
}

// fileID is what may be the name of a journal: ids come from clients.
var fileID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Put implements Store. A file that is there with the same content stays:
// a process that was taken for dead may write what its successor has written.
func (f *Shared) Put(ctx context.Context, x File, r io.Reader) (_ File, err error) {
	id := x.ID
	ids, err := f.log.Journals(ctx)
	if err != nil {
		return File{}, err
	}
	if len(ids) >= maxFiles {
		return File{}, fmt.Errorf("%w: there are %d files; delete some", ErrSize, len(ids))
	}
	if x, err = f.local.Put(ctx, x, r); err != nil {
		return x, err
	}
	if x, err = f.publish(ctx, x); err != nil {
		err = errors.Join(err, f.local.Delete(ctx, id))
	}
	if err != nil && !errors.Is(err, journal.ErrConflict) { // else another process's records are there
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonLimit)
		defer cancel()
		_ = f.abandon(last, id) // what the log does not take now, OpenShared does
	}
	return x, err
}

// publish writes a file of the folder to the log.
func (f *Shared) publish(ctx context.Context, x File) (_ File, err error) {
	ctx, cancel := context.WithTimeout(ctx, fileLimit)
	defer cancel()
	old, err := f.Get(ctx, x.ID)
	switch {
	case err == nil && old.SHA256 == x.SHA256:
		return old, nil
	case err == nil || errors.Is(err, ErrNone): // another content, or half a file
		err = f.log.Drop(ctx, x.ID)
	}
	if err != nil {
		return File{}, err
	}
	file, _, err := f.local.Open(ctx, x.ID)
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	j := journal.NewWriter(x.ID)
	add := func(kind journal.Kind, payload []byte) error {
		ctx, cancel := context.WithTimeout(ctx, journal.Silence(ctx, fileLimit))
		defer cancel()
		r := journal.Record{Kind: kind, At: x.CreatedAt * 1000, Payload: payload}
		_, err := j.Append(ctx, patient{f.log}, &r, func(*journal.Record) error {
			return fmt.Errorf("%w: another process writes the file %s", journal.ErrConflict, x.ID)
		})
		return err
	}
	for b := make([]byte, chunkBytes); ; {
		n, err := io.ReadFull(file, b)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return File{}, fmt.Errorf("jobs: %w", err)
		}
		if err := add(KindChunk, b[:n]); err != nil {
			return File{}, err
		}
	}
	meta, err := json.Marshal(x)
	if err != nil {
		return File{}, fmt.Errorf("jobs: %w", err)
	}
	return x, add(KindFile, meta)
}

func (f *Shared) Get(ctx context.Context, id string) (x File, err error) {
	none := fmt.Errorf("%w: %.128s", ErrNone, id)
	if !fileID.MatchString(id) {
		return x, none
	}
	_, data, err := f.log.Last(ctx, id)
	if err != nil {
		return x, err
	}
	if data == nil {
		return x, none
	}
	r, err := journal.Decode(id, data)
	if err != nil {
		return x, err
	}
	if r.Kind != KindFile { // it is being written, or its writer died
		return x, none
	}
	if err := json.Unmarshal(r.Payload, &x); err != nil || x.ID != id {
		return x, fmt.Errorf("%w: the description of file %s does not decode: %v", journal.ErrDamaged, id, err)
	}
	return x, nil
}

func (f *Shared) List(ctx context.Context) (out []File, err error) {
	ids, err := f.log.Journals(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		x, err := f.Get(ctx, id)
		if errors.Is(err, ErrNone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return newestFirst(out), nil
}

// Open implements Store: from the folder, else from the log by way of it.
func (f *Shared) Open(ctx context.Context, id string) (*os.File, File, error) {
	x, err := f.Get(ctx, id)
	if err != nil {
		return nil, x, err
	}
	if c, err := f.local.Get(ctx, id); err == nil && c.SHA256 == x.SHA256 {
		if file, _, err := f.local.Open(ctx, id); err == nil {
			return file, x, nil
		}
	}
	if err := f.fetch(ctx, x); err != nil {
		return nil, x, err
	}
	file, _, err := f.local.Open(ctx, id)
	return file, x, err
}

// fetch copies a file from the log to the folder.
func (f *Shared) fetch(ctx context.Context, x File) error {
	ctx, cancel := context.WithTimeout(ctx, fileLimit)
	defer cancel()
	pr, pw := io.Pipe()
	go func() { // ends when the pipe's other end is closed
		j := journal.NewWriter(x.ID)
		err := f.log.Read(ctx, x.ID, 0, func(seq uint64, data []byte) error {
			r, err := j.Verify(seq, data)
			if err == nil && r.Kind == KindChunk {
				_, err = pw.Write(r.Payload)
			}
			return err
		})
		_ = pw.CloseWithError(err)
	}()
	got, err := f.local.Put(ctx, x, pr)
	_ = pr.CloseWithError(errors.New("jobs: the file cannot be written"))
	if err == nil && got.SHA256 != x.SHA256 {
		err = errors.Join(fmt.Errorf("%w: file %s has %d bytes with another SHA-256 than the %d that were written", journal.ErrDamaged, x.ID, got.Bytes, x.Bytes),
			f.local.Delete(ctx, x.ID))
	}
	return err
}

func (f *Shared) Delete(ctx context.Context, id string) error {
	if _, err := f.Get(ctx, id); err != nil {
		return err
	}
	if err := f.log.Drop(ctx, id); err != nil {
		return err
	}
	if err := f.local.Delete(ctx, id); !errors.Is(err, ErrNone) {
		return err
	}
	return nil
}

// Clear forgets every file of the log.
func (f *Shared) Clear(ctx context.Context) error { return f.log.Clear(ctx) }

// Take copies the files of a folder into the log, those that are there already
// left out; with away they then leave the folder. Damaged ones stay where they
// are; damage says which.
func (f *Shared) Take(ctx context.Context, from *Folder, away bool) (damage, err error) {
	files, err := from.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range files {
		err := f.take(ctx, from, x)
		if errors.Is(err, journal.ErrDamaged) || errors.Is(err, os.ErrNotExist) {
			damage = errors.Join(damage, err)
			continue
		}
		if err != nil {
			return damage, err
		}
		if away {
			if err := from.Delete(ctx, x.ID); err != nil {
				return damage, err
			}
		}
	}
	return damage, nil
}

func (f *Shared) take(ctx context.Context, from *Folder, x File) error {
	if old, err := f.Get(ctx, x.ID); err == nil && old.SHA256 == x.SHA256 {
		return nil
	} else if err != nil && !errors.Is(err, ErrNone) {
		return err
	}
	r, _, err := from.Open(ctx, x.ID)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = f.Put(ctx, x, r)
	return err
}

func (f *Shared) Close() error { return f.log.Close() }
