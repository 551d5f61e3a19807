package batches

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Limits of a batch. They equal the limits of OpenAI.
const (
	maxLines     = 50_000
	maxOpenBatch = 100
	maxIssues    = 100
	maxCustomID  = 512
	window       = 24 * time.Hour
	every        = 100 * time.Millisecond
)

// feeder turns the lines of a batch into jobs, at most Window lines at a time. All of its state is
// derived from the input file and the existing jobs, so a restarted coordinator rebuilds it. Lines
// that already have a job are skipped.
type feeder struct {
	file    *os.File
	lines   []lineAt
	next    int           // first line without a job
	low     int           // every line below this one is settled
	settled counts        // counts of the lines below low
	refused map[int]error // lines that could not become jobs, with the reason
}

type lineAt struct{ at, bytes int64 }

// inputLine is one line of an input file.
type inputLine struct {
	CustomID string          `json:"custom_id"`
	Method   string          `json:"method"`
	URL      string          `json:"url"`
	Body     json.RawMessage `json:"body"`
}

func (f *feeder) line(i int) (l inputLine, err error) {
	b := make([]byte, f.lines[i].bytes)
	if _, err := f.file.ReadAt(b, f.lines[i].at); err != nil {
		return l, fmt.Errorf("jobs: line %d: %w", i+1, err)
	}
	_ = strictjson.Unmarshal(b, &l) // scan has checked the line, or an older build accepted it
	return l, nil
}

// byteOrderMark is the UTF-8 BOM that some editors and spreadsheets write at the start of a file.
var byteOrderMark = []byte("\xef\xbb\xbf")

func lineJob(batch string, line int) string {
	return fmt.Sprintf("job-%s-%d", batch[len(prefix):], line)
}

// Config configures a Service. Zero fields take their defaults.
type Config struct {
	// Window is the maximum number of lines of one batch that are jobs at the same time. Default
	// 256.
	Window int
	// MaxBody is the maximum size of a line's request in bytes. Default 8 MiB.
	MaxBody int
	// Durability is reported to clients, see jobs.Config.
	Durability func() (kind string, replicas int)
}

// Service runs the batches of a store as jobs and serves their HTTP routes.
type Service struct {
	store      *Store
	jobs       *jobs.Service
	files      files.Store
	api        *api.Server
	cfg        Config
	durability func() (kind string, replicas int)
	cancel     context.CancelFunc
	done       chan struct{}
}

// Start runs the batches that the store has read, until Stop is called or the API stops.
func Start(s *Store, j *jobs.Service, f files.Store, a *api.Server, cfg Config) *Service {
	s.jobs = j.Store()
	cfg.Window, cfg.MaxBody = cmp.Or(cfg.Window, 256), cmp.Or(cfg.MaxBody, 8<<20)
	v := &Service{store: s, jobs: j, files: f, api: a, cfg: cfg, durability: cfg.Durability, done: make(chan struct{})}
	if v.durability == nil {
		v.durability = func() (string, int) { return "single", 1 }
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	go v.run(ctx)
	return v
}

// Stop returns once no batch advances any more. Call it before stopping the jobs.
func (v *Service) Stop() {
	v.cancel()
	<-v.done
}

// Routes returns the handlers of the batch routes.
func (v *Service) Routes() routes.Handlers {
	return routes.Handlers{
		"POST /v1/batches":   routes.Answer(v.api, v.postBatch),
		"GET /v1/batches":    routes.Answer(v.api, v.listBatches),
		"GET /v1/batches/*":  routes.Answer(v.api, v.getBatch),
		"POST /v1/batches/*": routes.Answer(v.api, v.cancelBatch),
	}
}

// run advances every batch at each tick.
func (v *Service) run(ctx context.Context) {
	defer close(v.done)
	defer v.cancel()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-v.api.Stopping():
			v.cancel()
		case <-t.C:
		}
		for _, b := range v.store.list() {
			if ctx.Err() != nil {
				b.close()
				continue
			}
			b.mu.Lock()
			st := b.state
			b.mu.Unlock()
			if st.Phase.Final() {
				continue
			}
			if err := v.move(ctx, b, st); err != nil && ctx.Err() == nil {
				v.store.log.Warn("jobs: batch stalled, retrying", "batch", b.id, "error", err)
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (b *batch) close() {
	if b.feed != nil && b.feed.file != nil {
		b.feed.file.Close()
	}
	b.feed = nil
}

func (v *Service) move(ctx context.Context, b *batch, st State) error {
	if b.feed == nil {
		f, issues, err := v.openInput(ctx, b, st)
		if err != nil {
			return err
		}
		if len(issues) > 0 {
			return v.store.append(ctx, b, KindDone, endRecord{Phase: Failed, Issues: issues})
		}
		b.feed = f
	}
	f := b.feed
	if st.Phase == Validating {
		return v.store.append(ctx, b, KindValidated, phaseRecord{Total: len(f.lines)})
	}
	if !st.Stopped && v.store.jobs.Now() > st.Created+window.Milliseconds() {
		return v.store.stop(ctx, b, true)
	}
	if st.Total == 0 { // cancelled before it was validated
		f.lines = nil
	}
	if st.Stopped {
		for i := f.next; i < len(f.lines); i++ { // after a restart; lines that were refused have no job
			if v.known(b, i) {
				f.next = i + 1
			}
		}
		for i := f.low; i < f.next; i++ {
			if err := v.jobs.Cancel(ctx, lineJob(b.id, i)); err != nil {
				return err
			}
		}
	} else if err := v.feed(ctx, b); err != nil {
		return err
	}
	v.count(b, st.Stopped)
	if f.low < f.next || f.next < len(f.lines) && !st.Stopped {
		return nil
	}
	b.mu.Lock()
	b.ready = true
	b.mu.Unlock()
	return v.finalize(ctx, b, st)
}

// known reports whether a line already has a job.
func (v *Service) known(b *batch, line int) bool {
	_, ok := v.jobs.Outcome(lineJob(b.id, line))
	return ok
}

// feed creates jobs for the next lines while the window has room.
func (v *Service) feed(ctx context.Context, b *batch) error {
	f := b.feed
	for ; f.next < len(f.lines) && f.next-f.low < v.cfg.Window; f.next++ {
		if v.known(b, f.next) {
			continue
		}
		l, err := f.line(f.next)
		if err != nil {
			return err
		}
		err = v.jobs.Accept(ctx, lineJob(b.id, f.next),
			jobs.Spec{Endpoint: l.URL, Body: l.Body, Batch: b.id, Line: f.next, Holder: b.spec.Holder})
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if jobs.Away(apierr.Of(err).Status) {
			return err // the next tick tries again
		}
		f.refused[f.next] = err
	}
	return nil
}

// count advances low and updates the counts of the API. A line without a job is settled if the batch is stopped.
func (v *Service) count(b *batch, stopped bool) {
	f := b.feed
	settle := func(i int, c *counts) bool {
		if f.refused[i] != nil {
			c.Failed++
			return true
		}
		j, ok := v.jobs.Outcome(lineJob(b.id, i))
		switch {
		case j.Phase == jobs.Completed:
			c.Completed++
		case j.Phase.Final(), !ok && stopped:
			c.Failed++
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

// openInput reads the input file. If issues are returned, the batch fails with them. Lines are checked
// once, at validation, so a newer rule never fails a batch that an older build accepted.
func (v *Service) openInput(ctx context.Context, b *batch, st State) (*feeder, []issue, error) {
	file, _, err := v.files.Open(ctx, b.spec.Input)
	if errors.Is(err, files.ErrNotFound) || errors.Is(err, journal.ErrDamaged) {
		return nil, []issue{{Code: "invalid_file", Message: err.Error()}}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	f := &feeder{file: file, refused: map[int]error{}}
	issues, err := f.scan(b.spec.Endpoint, v.cfg.MaxBody, v.lineShape())
	if st.Phase != Validating && (st.Total == 0 || st.Total == len(f.lines)) {
		issues = nil
	}
	if err != nil || len(issues) > 0 {
		file.Close()
	}
	return f, issues, err
}

// lineShape returns the JSON limits of a line. The request is nested one level deeper than in a
// plain HTTP body.
func (v *Service) lineShape() strictjson.Limits {
	l := v.api.Limits()
	return strictjson.Limits{Depth: l.JSONDepth + 1, Names: l.JSONNames}
}

// scan indexes the lines and reports every invalid one as an issue.
func (f *feeder) scan(endpoint string, maxBody int, shape strictjson.Limits) (issues []issue, err error) {
	bad := func(line int, code, param, format string, a ...any) {
		if len(issues) < maxIssues {
			issues = append(issues, issue{Code: code, Param: param, Line: line, Message: fmt.Sprintf(format, a...)})
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
		if begin == 0 {
			line = bytes.TrimPrefix(line, byteOrderMark)
			begin = at - int64(len(line))
		}
		text := bytes.TrimSpace(line)
		if len(text) == 0 {
			continue
		}
		if len(f.lines) == maxLines {
			bad(n, "too_many_lines", "", "The file has more than %d lines.", maxLines)
			return issues, nil
		}
		f.lines = append(f.lines, lineAt{begin, int64(len(line))})
		if fault := strictjson.Check(text, shape); fault != nil {
			bad(n, "invalid_json_line", fault.At, "Line %d: %s", n, fault.Message)
			continue
		}
		var l inputLine
		switch err := strictjson.Unmarshal(text, &l); {
		case err != nil:
			bad(n, "invalid_json_line", "", "Line %d does not describe a request. %v", n, err)
		case l.CustomID == "" || len(l.CustomID) > maxCustomID:
			bad(n, "invalid_custom_id", "custom_id", "Line %d needs a 'custom_id' of 1 to %d bytes.", n, maxCustomID)
		case seen[l.CustomID] > 0:
			bad(n, "duplicate_custom_id", "custom_id", "Line %d has the 'custom_id' of line %d.", n, seen[l.CustomID])
		case l.Method != http.MethodPost:
			bad(n, "invalid_method", "method", "Line %d has the method %.20q; it must be POST.", n, l.Method)
		case l.URL != endpoint:
			bad(n, "mismatched_endpoint", "url", "Line %d is for %.60q, the batch is for %s.", n, l.URL, endpoint)
		case len(l.Body) == 0 || l.Body[0] != '{':
			bad(n, "invalid_body", "body", "Line %d has no 'body' object.", n)
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

// readLine returns the next line including its line break. Lines longer than limit bytes are an
// error.
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
	ID       string         `json:"id"`
	CustomID string         `json:"custom_id"`
	Response *outResponse   `json:"response"`
	Error    *wire.JobError `json:"error"`
}

type outResponse struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

// finalize writes the output and error files and ends the batch. File ids are derived from the
// batch id, so repeating this after a crash replaces the files.
func (v *Service) finalize(ctx context.Context, b *batch, st State) error {
	end := endRecord{Phase: st.Outcome(), Counts: counts{Total: len(b.feed.lines), Completed: b.feed.settled.Completed}.withRestFailed()}
	tail := b.id[len(prefix):]
	for _, x := range []struct {
		good bool
		name string
		id   *string
	}{{true, "output", &end.Output}, {false, "error", &end.Errors}} {
		pr, pw := io.Pipe()
		count := make(chan int, 1)
		go func() { // ends when the reading side of the pipe is closed
			n, err := v.writeLines(ctx, b, st, pw, x.good)
			_ = pw.CloseWithError(err)
			count <- n
		}()
		id := "file-" + x.name + "-" + tail
		_, err := v.files.Put(ctx, files.File{ID: id, Filename: b.id + "_" + x.name + ".jsonl", Purpose: "batch_output",
			CreatedAt: v.store.jobs.Now() / 1000, Holder: b.spec.Holder}, pr)
		_ = pr.CloseWithError(errors.New("jobs: the file cannot be written"))
		if n := <-count; err != nil {
			return err
		} else if n > 0 {
			*x.id = id
		} else if err := v.files.Delete(ctx, id); err != nil {
			return err
		}
	}
	if err := v.store.append(ctx, b, KindDone, end); err != nil {
		return err
	}
	v.store.log.Info("jobs: batch ended", "batch", b.id, "state", end.Phase, "completed", end.Counts.Completed, "failed", end.Counts.Failed)
	b.close()
	return nil
}

// writeLines writes the results of the successful lines (good) or of the failed ones, in input
// order.
func (v *Service) writeLines(ctx context.Context, b *batch, st State, w io.Writer, good bool) (n int, err error) {
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

// outcome returns the output line of line i and whether it succeeded.
func (v *Service) outcome(ctx context.Context, b *batch, st State, i int) (line outLine, good bool, err error) {
	id := lineJob(b.id, i)
	line.ID = "batch_req_" + id[len("job-"):]
	if err := b.feed.refused[i]; err != nil {
		line.Response = &outResponse{RequestID: id}
		line.Response.Status, line.Response.Body = apierr.ErrorStatus(err)
		return line, false, nil
	}
	j, _ := v.jobs.Outcome(id)
	switch j.Phase {
	case jobs.Completed:
		result, err := v.jobs.Result(ctx, id)
		if errors.Is(err, journal.ErrDamaged) {
			line.Error = &wire.JobError{Code: "record_damaged", Message: err.Error()}
			return line, false, nil
		}
		line.Response = &outResponse{http.StatusOK, id, result}
		return line, true, err
	case jobs.Dead:
		if j.Status > 0 && j.Body != nil {
			line.Response = &outResponse{j.Status, id, j.Body}
		} else {
			line.Error = &wire.JobError{Code: j.Code, Message: j.Message}
		}
	default:
		line.Error = &wire.JobError{Code: "batch_cancelled", Message: "The batch was cancelled before this request finished."}
		if st.Expired {
			line.Error = &wire.JobError{Code: "batch_expired", Message: "The batch's completion window ended before this request finished."}
		}
	}
	return line, false, nil
}
