package jobs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"shoal/api"
)

// Limits of a batch, OpenAI's.
const (
	maxLines     = 50_000
	maxOpenBatch = 100
	maxIssues    = 100
	maxCustomID  = 512
	batchWindow  = 24 * time.Hour
	batchEvery   = 100 * time.Millisecond
)

// feeder turns the lines of a batch into jobs, a window of them at a time.
// Everything in it follows from the input file and the jobs, so that a restarted
// coordinator makes it anew; lines that are jobs already are found, not made.
type feeder struct {
	file    *os.File
	lines   []lineAt
	next    int           // the first line that is no job yet
	low     int           // all lines below are settled
	settled batchCounts   // of those below low
	refused map[int]error // lines that could not become jobs
}

type lineAt struct{ at, bytes int64 }

// batchLine is one line of an input file.
type batchLine struct {
	CustomID string          `json:"custom_id"`
	Method   string          `json:"method"`
	URL      string          `json:"url"`
	Body     json.RawMessage `json:"body"`
}

func (f *feeder) line(i int) (l batchLine, err error) {
	b := make([]byte, f.lines[i].bytes)
	if _, err := f.file.ReadAt(b, f.lines[i].at); err != nil {
		return l, fmt.Errorf("jobs: line %d: %w", i+1, err)
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, fmt.Errorf("jobs: line %d: %w", i+1, err)
	}
	return l, nil
}

func lineJob(batch string, line int) string {
	return fmt.Sprintf("job-%s-%d", batch[len(batchPrefix):], line)
}

// runBatches moves every batch on until Stop.
func (v *Service) runBatches() {
	defer v.wg.Done()
	t := time.NewTicker(batchEvery)
	defer t.Stop()
	for {
		select {
		case <-v.ctx.Done():
			for _, b := range v.store.listBatches() {
				b.close()
			}
			return
		case <-t.C:
		}
		for _, b := range v.store.listBatches() {
			b.mu.Lock()
			st := b.state
			b.mu.Unlock()
			if st.Phase.Final() || v.ctx.Err() != nil {
				continue
			}
			if err := v.moveBatch(v.ctx, b, st); err != nil && v.ctx.Err() == nil {
				v.cfg.Logger.Warn("jobs: a batch cannot go on for now", "batch", b.id, "error", err)
			}
		}
	}
}

func (b *batch) close() {
	if b.feed != nil && b.feed.file != nil {
		b.feed.file.Close()
	}
	b.feed = nil
}

func (v *Service) moveBatch(ctx context.Context, b *batch, st BatchState) error {
	if b.feed == nil {
		f, issues, err := v.openInput(ctx, b)
		if err != nil {
			return err
		}
		if len(issues) > 0 {
			return v.store.appendBatch(ctx, b, KindBatchDone, batchEnd{Phase: BatchFailed, Issues: issues})
		}
		b.feed = f
	}
	f := b.feed
	if st.Phase == BatchValidating {
		return v.store.appendBatch(ctx, b, KindValidated, batchPayload{Total: len(f.lines)})
	}
	if !st.Stopped && v.store.now() > st.Created+batchWindow.Milliseconds() {
		return v.store.stopBatch(ctx, b, true)
	}
	if st.Total == 0 { // cancelled before it was validated
		f.lines = nil
	}
	if st.Stopped {
		for i := f.low; i < f.next || i < len(f.lines) && v.store.job(lineJob(b.id, i)) != nil; i++ {
			f.next = max(f.next, i+1)
			if j := v.store.job(lineJob(b.id, i)); j != nil {
				if err := v.stopJob(ctx, j); err != nil {
					return err
				}
			}
		}
	} else if err := v.feed(ctx, b); err != nil {
		return err
	}
	v.count(b)
	if f.low < f.next || f.next < len(f.lines) && !st.Stopped {
		return nil
	}
	b.mu.Lock()
	b.ready = true
	b.mu.Unlock()
	return v.finalize(ctx, b, st)
}

// feed makes jobs of the next lines while the window has room.
func (v *Service) feed(ctx context.Context, b *batch) error {
	f := b.feed
	for ; f.next < len(f.lines) && f.next-f.low < v.cfg.Window; f.next++ {
		id := lineJob(b.id, f.next)
		if v.store.job(id) != nil {
			continue
		}
		l, err := f.line(f.next)
		if err != nil {
			return err
		}
		_, _, err = v.accept(ctx, id, Spec{Endpoint: l.URL, Body: l.Body, Batch: b.id, Line: f.next})
		if err == nil {
			continue
		}
		if status, _ := api.ErrorStatus(err); status != http.StatusBadRequest && status != http.StatusNotFound && status != http.StatusRequestEntityTooLarge {
			return err // the store: later
		}
		f.refused[f.next] = err
	}
	return nil
}

// count moves low up and updates what clients see.
func (v *Service) count(b *batch) {
	f := b.feed
	settle := func(i int, c *batchCounts) bool {
		if f.refused[i] != nil {
			c.Failed++
			return true
		}
		j := v.store.job(lineJob(b.id, i))
		if j == nil {
			return false
		}
		switch j.view().state.Phase {
		case Completed:
			c.Completed++
		case Dead:
			c.Failed++
		case Cancelled:
		default:
			return false
		}
		return true
	}
	for f.low < f.next && settle(f.low, &f.settled) {
		f.low++
	}
	c := f.settled
	for i := f.low; i < f.next; i++ {
		settle(i, &c)
	}
	c.Total = len(f.lines)
	b.mu.Lock()
	b.counts = c
	b.mu.Unlock()
}

// openInput reads and checks the input file; issues say why the batch fails.
func (v *Service) openInput(ctx context.Context, b *batch) (*feeder, []batchIssue, error) {
	file, _, err := v.files.Open(ctx, b.spec.Input)
	if errors.Is(err, ErrNoFile) || errors.Is(err, ErrDamaged) {
		return nil, []batchIssue{{Code: "invalid_file", Message: err.Error()}}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	f := &feeder{file: file, refused: map[int]error{}}
	issues, err := f.scan(b.spec.Endpoint, v.cfg.MaxBody)
	if err != nil || len(issues) > 0 {
		file.Close()
	}
	return f, issues, err
}

// scan finds the lines and what is wrong with them.
func (f *feeder) scan(endpoint string, maxBody int) (issues []batchIssue, err error) {
	bad := func(line int, code, param, format string, a ...any) {
		if len(issues) < maxIssues {
			issues = append(issues, batchIssue{Code: code, Param: param, Line: line, Message: fmt.Sprintf(format, a...)})
		}
	}
	seen := map[string]int{}
	r := bufio.NewReaderSize(f.file, 1<<16)
	at := int64(0)
	for n := 1; ; n++ {
		line, err := readLine(r, maxBody+(64<<10))
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if errors.Is(err, errLongLine) {
			bad(n, "line_too_long", "", "Line %d is longer than %d bytes.", n, maxBody)
			return issues, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("jobs: %w", err)
		}
		begin := at
		at += int64(len(line))
		text := bytes.TrimSpace(line)
		if len(text) == 0 {
			continue
		}
		if len(f.lines) == maxLines {
			bad(n, "too_many_lines", "", "The file has more than %d lines.", maxLines)
			return issues, nil
		}
		f.lines = append(f.lines, lineAt{begin, int64(len(line))})
		var l batchLine
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			bad(n, "invalid_json_line", "", "Line %d is not a JSON object of a request: %v.", n, err)
		case l.CustomID == "" || len(l.CustomID) > maxCustomID:
			bad(n, "invalid_custom_id", "custom_id", "Line %d needs a 'custom_id' of 1 to %d bytes.", n, maxCustomID)
		case seen[l.CustomID] > 0:
			bad(n, "duplicate_custom_id", "custom_id", "Line %d has the 'custom_id' of line %d.", n, seen[l.CustomID])
		case l.Method != http.MethodPost:
			bad(n, "invalid_method", "method", "Line %d has the method %.20q; it must be POST.", n, l.Method)
		case l.URL != endpoint:
			bad(n, "mismatched_endpoint", "url", "Line %d is for %.60q, the batch is for %s.", n, l.URL, endpoint)
		case len(l.Body) == 0 || l.Body[0] != '{':
			bad(n, "invalid_body", "body", "Line %d has no 'body' that is an object.", n)
		default:
			seen[l.CustomID] = n
		}
	}
	if len(f.lines) == 0 {
		bad(0, "empty_file", "", "The file has no requests.")
	}
	return issues, nil
}

var errLongLine = errors.New("jobs: line too long")

// readLine returns a line with its end, at most limit bytes of it.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > limit {
			return nil, errLongLine
		}
		out = append(out, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
	}
}

// outLine is one line of an output or error file.
type outLine struct {
	ID       string       `json:"id"`
	CustomID string       `json:"custom_id"`
	Response *outResponse `json:"response"`
	Error    *jobError    `json:"error"`
}

type outResponse struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

// finalize writes the files and ends the batch. The files' ids follow from the
// batch, so that doing it again after a crash replaces them.
func (v *Service) finalize(ctx context.Context, b *batch, st BatchState) error {
	end := batchEnd{Phase: st.Outcome(), Counts: b.feed.settled}
	end.Counts.Total = len(b.feed.lines)
	tail := b.id[len(batchPrefix):]
	for _, x := range []struct {
		good bool
		name string
		id   *string
	}{{true, "output", &end.Output}, {false, "error", &end.Errors}} {
		pr, pw := io.Pipe()
		count := make(chan int, 1)
		go func() { // ends when the pipe's other end is closed
			n, err := v.writeLines(ctx, b, st, pw, x.good)
			_ = pw.CloseWithError(err)
			count <- n
		}()
		id := "file-" + x.name + "-" + tail
		_, err := v.files.Put(ctx, id, b.id+"_"+x.name+".jsonl", "batch_output", v.store.now()/1000, pr)
		_ = pr.CloseWithError(errors.New("jobs: the file cannot be written"))
		if n := <-count; err != nil {
			return err
		} else if n > 0 {
			*x.id = id
		} else if err := v.files.Delete(ctx, id); err != nil {
			return err
		}
	}
	if err := v.store.appendBatch(ctx, b, KindBatchDone, end); err != nil {
		return err
	}
	v.cfg.Logger.Info("jobs: batch ended", "batch", b.id, "state", end.Phase, "completed", end.Counts.Completed, "failed", end.Counts.Failed)
	b.close()
	return nil
}

// writeLines writes the lines that went well, or the others, in the order of
// the input.
func (v *Service) writeLines(ctx context.Context, b *batch, st BatchState, w io.Writer, good bool) (n int, err error) {
	out := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for i := range b.feed.lines {
		l, err := b.feed.line(i)
		if err != nil {
			return n, err
		}
		line, fine, err := v.outcome(ctx, b, st, i)
		if err != nil {
			return n, err
		}
		if fine != good {
			continue
		}
		line.CustomID = l.CustomID
		if err := enc.Encode(line); err != nil {
			return n, err
		}
		n++
	}
	return n, out.Flush()
}

// outcome is what became of a line.
func (v *Service) outcome(ctx context.Context, b *batch, st BatchState, i int) (line outLine, good bool, err error) {
	id := lineJob(b.id, i)
	line.ID = "batch_req_" + id[len("job-"):]
	if err := b.feed.refused[i]; err != nil {
		line.Response = &outResponse{RequestID: id}
		line.Response.Status, line.Response.Body = api.ErrorStatus(err)
		return line, false, nil
	}
	j := v.store.job(id)
	phase := Cancelled
	if j != nil {
		phase = j.view().state.Phase
	}
	switch phase {
	case Completed:
		result, err := v.store.result(ctx, j.view())
		if errors.Is(err, ErrDamaged) {
			line.Error = &jobError{Code: "record_damaged", Message: err.Error()}
			return line, false, nil
		}
		line.Response = &outResponse{http.StatusOK, id, result}
		return line, true, err
	case Dead:
		w := j.view()
		if w.status > 0 && w.body != nil {
			line.Response = &outResponse{w.status, id, w.body}
		} else {
			line.Error = &jobError{Code: w.state.Code, Message: w.state.Message}
		}
	default:
		line.Error = &jobError{Code: "batch_cancelled", Message: "The batch was cancelled before this request ended."}
		if st.Expired {
			line.Error = &jobError{Code: "batch_expired", Message: "The batch's window was over before this request ended."}
		}
	}
	return line, false, nil
}
