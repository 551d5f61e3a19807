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

// Kinds of the records of a file.
const (
	KindChunk journal.Kind = 24 // part of the content
	KindFile  journal.Kind = 25 // the description, after the last chunk; it completes the file
)

const (
	chunkBytes = 1 << 20
	// abandonLimit is the deadline for removing an incomplete file.
	abandonLimit = 5 * time.Second
	// fileLimit is the deadline for writing one file to the log or reading it back.
	fileLimit = 5 * time.Minute
)

// Shared stores files in a log that several processes replicate, so that the next leader has them.
// A file is a journal of chunks that ends with its description. A local folder caches the files
// that passed through this process. Only the log decides which files exist.
type Shared struct {
	log   journal.FileLog
	local *Folder
}

// OpenShared opens the files of a log, with a folder for local copies. It removes copies of files
// that are gone from the log, and incomplete files in the log: their writer has died, or gets a
// conflict at its next write.
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
		if _, err := f.Get(ctx, x.ID); errors.Is(err, ErrNotFound) {
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

// abandon removes an incomplete file. If another process is still writing it, either that process
// completes it first and it stays, or its next append fails with a conflict.
func (f *Shared) abandon(ctx context.Context, id string) error {
	seq, data, err := f.log.Last(ctx, id)
	if err != nil || data == nil {
		return err
	}
	if r, err := journal.Decode(id, data); err != nil || r.Kind == KindFile {
		return nil //nolint:nilerr // readers report the damage
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

// timeoutLog limits each append to chunkLimit, so that the writer then checks the log and retries.
// A message that is sent during a leader election is lost.
type timeoutLog struct{ journal.FileLog }

const chunkLimit = 10 * time.Second

func (l timeoutLog) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkLimit)
	defer cancel()
	return l.FileLog.Append(ctx, name, after, data)
}

// fileID matches ids that are valid journal names. Ids come from clients.
var fileID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Put implements Store. A complete file with the same content stays: a process that was wrongly
// declared dead may write the same file as its successor.
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
	if err != nil && !errors.Is(err, journal.ErrConflict) { // on a conflict the records belong to another process
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonLimit)
		defer cancel()
		_ = f.abandon(last, id) // if this fails, the next OpenShared removes the file
	}
	return x, err
}

// publish writes a file from the folder to the log.
func (f *Shared) publish(ctx context.Context, x File) (_ File, err error) {
	ctx, cancel := context.WithTimeout(ctx, fileLimit)
	defer cancel()
	old, err := f.Get(ctx, x.ID)
	if errors.Is(err, ErrNotFound) { // it may be incomplete, and another process may complete it now
		if err = f.abandon(ctx, x.ID); err == nil {
			old, err = f.Get(ctx, x.ID)
		}
	}
	switch {
	case err == nil && old.SHA256 == x.SHA256:
		return old, nil
	case err == nil: // other content
		err = f.log.Drop(ctx, x.ID)
	case errors.Is(err, ErrNotFound):
		err = nil
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
		ctx, cancel := context.WithTimeout(ctx, journal.AnswerTimeout(ctx, fileLimit))
		defer cancel()
		r := journal.Record{Kind: kind, At: x.CreatedAt * 1000, Payload: payload}
		_, err := j.Append(ctx, timeoutLog{f.log}, &r, func(*journal.Record) error {
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
	none := fmt.Errorf("%w: %.128s", ErrNotFound, id)
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
	if r.Kind != KindFile { // still being written, or its writer died
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
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return newestFirst(out), nil
}

// Open implements Store. It reads from the folder, and first fetches the file from the log if the
// folder lacks it.
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
	go func() { // ends when the reading side of the pipe is closed
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
		err = errors.Join(fmt.Errorf("%w: file %s: the %d bytes do not match the SHA-256 of the %d bytes that were written",
			journal.ErrDamaged, x.ID, got.Bytes, x.Bytes),
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
	if err := f.local.Delete(ctx, id); !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// Clear removes every file from the log.
func (f *Shared) Clear(ctx context.Context) error { return f.log.Clear(ctx) }

// Take copies the files of a folder into the log, except those that are already there. If away is
// set, it then deletes them from the folder, which accepts no further ones: an upload may end later, and would
// be acknowledged but never found. Damaged files stay in the folder and are listed in damage.
func (f *Shared) Take(ctx context.Context, from *Folder, away bool) (damage, err error) {
	if away {
		from.move()
	}
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
	} else if err != nil && !errors.Is(err, ErrNotFound) {
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
