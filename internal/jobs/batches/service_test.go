package batches_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/batches"
	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// fakeEngine generates tokens that depend only on the prompt, and continues after already emitted ones.
type fakeEngine struct {
	mu      sync.Mutex
	pause   time.Duration
	fail    func(r *engine.Request, index int) error // called before each token
	hold    int                                      // requests block before the token with this index until the hold is lifted; 0: never
	most    int                                      // maximum number of requests that start until the hold is lifted; 0: no maximum
	begun   int
	away    bool
	resumed int              // number of tokens that were not recomputed
	now     func() time.Time // clock of the services; nil: the system clock
}

func (e *fakeEngine) Cluster() wire.ClusterState { return wire.ClusterState{} }
func (e *fakeEngine) Unread(string, bool)        {}
func (e *fakeEngine) Health() error              { return nil }
func (e *fakeEngine) Ready() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.away {
		return apierr.ErrNotReady{Reason: "away"}
	}
	return nil
}

func (e *fakeEngine) held(place, i int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hold > 0 && i >= e.hold || e.most > 0 && place > e.most
}

func (e *fakeEngine) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold, e.most = 0, 0
}

func (e *fakeEngine) Submit(ctx context.Context, r *engine.Request) (<-chan engine.Event, error) {
	e.mu.Lock()
	pause, fail := e.pause, e.fail
	e.resumed += len(r.Emitted)
	e.begun++
	place := e.begun
	e.mu.Unlock()
	out := make(chan engine.Event)
	go func() {
		defer close(out)
		send := func(ev engine.Event) bool {
			select {
			case out <- ev:
				return true
			case <-ctx.Done():
				return false
			}
		}
		for i := len(r.Emitted); i < r.MaxTokens; i++ {
			if fail != nil {
				if err := fail(r, i); err != nil {
					send(engine.Event{Token: engine.NoToken, Finish: engine.FinishError, Err: err})
					return
				}
			}
			for e.held(place, i) {
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return
				}
			}
			h := fnv.New32()
			fmt.Fprint(h, r.Prompt, r.Sampling.Seed, i)
			if !send(engine.Event{Token: int32(100 + h.Sum32()%2000)}) {
				return
			}
			time.Sleep(pause)
		}
		send(engine.Event{Token: engine.NoToken, Finish: engine.FinishLength})
	}()
	return out, nil
}

var tok = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Load("../../../models/fry") })

// config configures all three services.
type config struct {
	jobs.Config
	Window  int
	Silence time.Duration
	model   string // its name; "m" when empty
}

// house is the three services over one log, with their HTTP server.
type house struct {
	t    *testing.T
	stop func()
	api  *api.Server
	http *httptest.Server
}

func sharedFiles(t *testing.T, l journal.FileLog) files.Store {
	t.Helper()
	f, err := files.OpenShared(t.Context(), l, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func open(t *testing.T, l journal.Log, dir string, e *fakeEngine, cfg config) *house {
	t.Helper()
	kept, err := files.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	return openWith(t, l, kept, e, cfg)
}

func openWith(t *testing.T, l journal.Log, kept files.Store, e *fakeEngine, cfg config) *house {
	t.Helper()
	tk, err := tok()
	if err != nil {
		t.Fatal(err)
	}
	chat, err := tokenizer.LoadChatTemplate("../../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	a, err := api.New(api.Config{Models: []string{cmp.Or(cfg.model, "m")}, MaxModelLen: 4096, Logger: quiet, SystemFingerprint: "f"},
		e, engine.FromTokenizer(tk), engine.FromTemplate(chat))
	if err != nil {
		t.Fatal(err)
	}
	lines := batches.NewStore(quiet)
	store, err := jobs.NewStore(t.Context(), l, jobs.StoreConfig{Logger: quiet, Peers: []jobs.PeerStore{lines}, Now: e.now})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = quiet
	if cfg.Rules.Backoff == 0 {
		cfg.Rules.Backoff = 10 * time.Millisecond
	}
	m, err := routes.NewMount(a, "closed")
	if err != nil {
		t.Fatal(err)
	}
	s := jobs.Start(store, e, a, cfg.Config)
	b := batches.Start(lines, s, kept, a, batches.Config{Window: cfg.Window})
	m.Serve(cfg.Silence, s.Routes(), b.Routes(), files.Serve(kept, a, quiet, lines.Uses).Routes())
	h := &house{t, func() { b.Stop(); s.Stop() }, a, httptest.NewServer(a.Handler())}
	t.Cleanup(h.close)
	return h
}

func (h *house) close() {
	h.stop()
	h.http.CloseClientConnections()
	h.http.Close()
}

func (h *house) do(method, path, body string, header ...string) (int, map[string]any) {
	h.t.Helper()
	resp := h.open(method, path, body, header...)
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		h.t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, b)
	}
	return resp.StatusCode, out
}

func (h *house) open(method, path, body string, header ...string) *http.Response {
	h.t.Helper()
	r, _ := http.NewRequest(method, h.http.URL+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := h.http.Client().Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp
}

func (h *house) want(status int, method, path, body string, header ...string) map[string]any {
	h.t.Helper()
	got, out := h.do(method, path, body, header...)
	if got != status {
		h.t.Fatalf("%s %s: status %d, want %d: %v", method, path, got, status, out)
	}
	return out
}

// patience is the deadline of every wait; it allows for a heavily loaded machine.
const patience = 8 * time.Second

// until waits until a job has the given state.
func (h *house) until(id, state string) (j map[string]any) {
	h.t.Helper()
	testutil.Eventually(h.t, patience, "job "+state, func() (bool, string) {
		j = h.want(200, "GET", "/v1/jobs/"+id, "")
		return j["state"] == state, fmt.Sprint(j)
	})
	return j
}

// events reads a stream from an index until it ends or breaks, and checks that the indices have no
// gap.
func (h *house) events(id string, from int) (texts []string, end map[string]any) {
	h.t.Helper()
	resp, err := h.http.Client().Get(fmt.Sprintf("%s/v1/jobs/%s/events?from=%d", h.http.URL, id, from))
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var e map[string]any
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			h.t.Fatal(err)
		}
		if e["object"] == "job.end" {
			return texts, e
		}
		if e["index"] != float64(from+len(texts)) {
			h.t.Fatalf("index %v, want %d", e["index"], from+len(texts))
		}
		texts = append(texts, fmt.Sprint(e["token"], e["text"], e["choice"]))
	}
	return texts, nil
}

var noID = regexp.MustCompile(`"id":"[^"]*"|"created":\d+`)

func canon(v any) string {
	b, _ := json.Marshal(v)
	return noID.ReplaceAllString(string(b), "")
}

var (
	quiet   = slog.New(slog.NewTextHandler(io.Discard, nil))
	errDisk = errors.New("disk: no space left on device")
)

const askFor = `{"prompt":"func main() {","max_tokens":40,"seed":7,"n":2}`

func TestAJobEqualsItsEndpoint(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	direct := h.want(200, "POST", "/v1/completions", askFor)
	for _, body := range []string{askFor, `{"endpoint":"/v1/completions","body":` + askFor + `}`} {
		j := h.want(202, "POST", "/v1/jobs", body)
		if j["durability"] != "single" {
			t.Fatalf("%v", j)
		}
		id := j["id"].(string)
		texts, end := h.events(id, 0)
		if len(texts) != 82 || end["state"] != "completed" {
			t.Fatalf("%d events, end %v", len(texts), end)
		}
		if got := h.until(id, "completed")["result"]; canon(got) != canon(direct) {
			t.Fatalf("the job's result\n%s\nthe endpoint's\n%s", canon(got), canon(direct))
		}
		one := h.want(200, "GET", "/v1/jobs?limit=1", "")["data"].([]any)[0].(map[string]any)
		answer := direct["choices"].([]any)[0].(map[string]any)["text"].(string)
		preview, _ := strings.CutSuffix(one["answer_preview"].(string), "…")
		if one["prompt_preview"] != "func main() {" || len(preview) < 20 ||
			!strings.HasPrefix(strings.Join(strings.Fields(answer), " "), preview) {
			t.Errorf("the list shows %q and %q, the answer is %q", one["prompt_preview"], one["answer_preview"], answer)
		}
		if again, _ := h.events(id, 30); fmt.Sprint(again) != fmt.Sprint(texts[30:]) {
			t.Fatal("events read again differ")
		}
	}
}

// TestNoTokenWithoutAnAnswer: max_tokens 0 echoes the prompt. The token that the engine has to
// generate appears in no event and no preview, also after a restart.
func TestNoTokenWithoutAnAnswer(t *testing.T) {
	log, dir := journaltest.NewMemoryLog(), t.TempDir()
	h := open(t, log, dir, &fakeEngine{}, config{})
	id := h.want(202, "POST", "/v1/jobs", `{"prompt":[40],"max_tokens":0,"echo":true,"logprobs":1}`)["id"].(string)
	for range 2 {
		texts, end := h.events(id, 0)
		if end["state"] != "completed" || len(texts) == 0 {
			t.Fatalf("%q, %v", texts, end)
		}
		for _, text := range texts {
			if !strings.HasPrefix(text, "<nil>") {
				t.Errorf("an event with a token: %q", text)
			}
		}
		if j := h.until(id, "completed"); j["answer_preview"] != nil && j["answer_preview"] != "" {
			t.Errorf("answer_preview is %q", j["answer_preview"])
		}
		h.close()
		h = open(t, log, dir, &fakeEngine{}, config{})
	}
}

func TestIdempotencyKey(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	var wg sync.WaitGroup
	ids := make([]any, 8)
	for i := range ids {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, j := h.do("POST", "/v1/jobs", askFor, "Idempotency-Key", "k")
			ids[i] = j["id"]
		}()
	}
	wg.Wait()
	for _, id := range ids {
		if id == nil || id != ids[0] {
			t.Fatalf("one key, jobs %v", ids)
		}
	}
	e := h.want(409, "POST", "/v1/jobs", `{"prompt":"other"}`, "Idempotency-Key", "k")
	if e["error"].(map[string]any)["code"] != "idempotency_mismatch" {
		t.Fatalf("%v", e)
	}
	if l := h.want(200, "GET", "/v1/jobs", ""); len(l["data"].([]any)) != 1 {
		t.Fatalf("%v", l)
	}
	h.want(400, "POST", "/v1/jobs", `{"prompt":"x","temperature":9}`)
	h.want(400, "POST", "/v1/jobs", `{"model":"m"}`)
	h.want(404, "GET", "/v1/jobs/nosuch", "")
	h.want(400, "GET", "/v1/jobs?state=odd", "")
}

func TestFailuresAreRetriedThenDead(t *testing.T) {
	e := &fakeEngine{}
	boom := map[int]bool{3: true, 11: true}
	e.fail = func(r *engine.Request, i int) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if strings.HasSuffix(r.ID, "/0") && boom[i] {
			boom[i] = false
			return apierr.ErrFailed{Code: "step_failed", Message: "boom"}
		}
		if len(r.Prompt) == 1 {
			return apierr.ErrFailed{Code: "step_failed", Message: "always"}
		}
		return nil
	}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), e, config{Config: jobs.Config{Rules: jobs.Rules{MaxFailures: 3}}})
	id := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	j := h.until(id, "completed")
	if j["attempt"] != 3.0 {
		t.Fatalf("attempts: %v", j["attempt"])
	}
	if direct := h.want(200, "POST", "/v1/completions", askFor); canon(j["result"]) != canon(direct) {
		t.Fatal("a retried job gives another result")
	}
	id = h.want(202, "POST", "/v1/jobs", `{"prompt":[65]}`)["id"].(string)
	j = h.until(id, "dead")
	if j["attempt"] != 3.0 || j["error"].(map[string]any)["code"] != "step_failed" {
		t.Fatalf("%v", j)
	}
	l := h.want(200, "GET", "/v1/jobs?state=dead", "")
	if d := l["data"].([]any); len(d) != 1 || d[0].(map[string]any)["id"] != id {
		t.Fatalf("dead letters: %v", l)
	}
	if _, end := h.events(id, 0); end["state"] != "dead" {
		t.Fatalf("%v", end)
	}
}

// The system clock is set back by hours after every failure. Retries do not wait for the clock to
// catch up.
func TestClockSetBackWhileAJobWaits(t *testing.T) {
	var fails, behind atomic.Int64
	e := &fakeEngine{now: func() time.Time { return time.Now().Round(0).Add(-time.Duration(behind.Load())) }}
	e.fail = func(_ *engine.Request, i int) error {
		if i == 2 && fails.Add(1) <= 3 {
			return apierr.ErrFailed{Code: "step_failed", Message: "boom"}
		}
		return nil
	}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(),
		e, config{Config: jobs.Config{Rules: jobs.Rules{MaxFailures: 5, Backoff: 50 * time.Millisecond}}})
	id := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for seen := int64(0); ; time.Sleep(time.Millisecond) {
			select {
			case <-stop:
				return
			default:
			}
			if n := fails.Load(); n > seen {
				seen = n
				time.Sleep(10 * time.Millisecond) // during the pause before the retry
				behind.Add(int64(3 * time.Hour))
			}
		}
	})
	j := h.until(id, "completed")
	close(stop)
	wg.Wait()
	if j["attempt"].(float64) < 3 {
		t.Errorf("attempts: %v, want 3 or more", j["attempt"])
	}
}

func TestRestartGoesOnWhereItWas(t *testing.T) {
	l, dir, e := journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{pause: 4 * time.Millisecond, hold: 30}
	h := open(t, l, dir, e, config{})
	id := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	var seen []string
	for deadline := time.Now().Add(patience); len(seen) < 10 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		go func() { time.Sleep(60 * time.Millisecond); h.http.CloseClientConnections() }()
		more, _ := h.events(id, len(seen))
		seen = append(seen, more...)
	}
	h.close()
	e.mu.Lock()
	e.away = true
	e.mu.Unlock()
	h = open(t, l, dir, e, config{})
	time.Sleep(150 * time.Millisecond)
	if j := h.want(200, "GET", "/v1/jobs/"+id, ""); j["state"] != "queued" || j["attempt"] != 1.0 {
		t.Fatalf("while the cluster is away: %v", j)
	}
	e.mu.Lock()
	e.away, e.hold = false, 0
	e.mu.Unlock()
	more, end := h.events(id, len(seen))
	seen = append(seen, more...)
	if end == nil || end["state"] != "completed" || len(seen) != 82 {
		t.Fatalf("%d events, end %v", len(seen), end)
	}
	if e.resumed == 0 {
		t.Fatal("the restarted job began from nothing")
	}
	if all, _ := h.events(id, 0); fmt.Sprint(all) != fmt.Sprint(seen) {
		t.Fatal("the stream in pieces differs from the stream at once")
	}
	direct := h.want(200, "POST", "/v1/completions", askFor)
	if j := h.until(id, "completed"); canon(j["result"]) != canon(direct) {
		t.Fatal("the restarted job gives another result")
	}
}

func TestCancelAndPurge(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{pause: 5 * time.Millisecond}, config{Config: jobs.Config{Parallel: 1}})
	a := h.want(202, "POST", "/v1/jobs", `{"prompt":"a","max_tokens":4000}`)["id"].(string)
	b := h.want(202, "POST", "/v1/jobs", `{"prompt":"b","max_tokens":2}`)["id"].(string)
	h.until(a, "running")
	for range 2 { // a second cancel has no effect
		if j := h.want(200, "DELETE", "/v1/jobs/"+a, ""); j["state"] != "cancelled" {
			t.Fatalf("%v", j)
		}
	}
	h.until(b, "completed") // the slot is free
	h.want(200, "DELETE", "/v1/jobs/"+a+"?purge=true", "")
	h.want(404, "GET", "/v1/jobs/"+a, "")
}

func TestAFullDiskRefusesNewJobsAndKeepsOldOnes(t *testing.T) {
	l := journaltest.NewMemoryLog()
	h := open(t, l, t.TempDir(), &fakeEngine{}, config{})
	id := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	h.until(id, "completed")
	full := func(on bool) {
		l.SetFault(nil)
		if on {
			l.SetFault(func(string, []byte, bool) error { return errors.Join(journal.ErrFull, errDisk) })
		}
	}
	full(true)
	if e := h.want(503, "POST", "/v1/jobs", askFor); e["error"].(map[string]any)["code"] != "store_full" {
		t.Fatalf("%v", e)
	}
	h.until(id, "completed")
	if s := h.want(200, "GET", "/v1/jobs", "")["store"].(string); !strings.Contains(s, "no space") {
		t.Fatalf("store: %q", s)
	}
	full(false)
	h.until(h.want(202, "POST", "/v1/jobs", askFor)["id"].(string), "completed")
}

func (h *house) upload(text string, header ...string) string {
	h.t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	w, _ := m.CreateFormFile("file", "in.jsonl")
	_, _ = io.WriteString(w, text)
	_ = m.WriteField("purpose", "batch")
	m.Close()
	return h.want(200, "POST", "/v1/files", b.String(), append(header, "Content-Type", m.FormDataContentType())...)["id"].(string)
}

func (h *house) lines(id any) []map[string]any {
	h.t.Helper()
	resp, err := h.http.Client().Get(fmt.Sprintf("%s/v1/files/%v/content", h.http.URL, id))
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []map[string]any
	for d := json.NewDecoder(resp.Body); ; {
		var x map[string]any
		if err := d.Decode(&x); err != nil {
			return out
		}
		out = append(out, x)
	}
}

func (h *house) batchUntil(id string, ok func(map[string]any) bool) (b map[string]any) {
	h.t.Helper()
	testutil.Eventually(h.t, patience, "a state of the batch", func() (bool, string) {
		b = h.want(200, "GET", "/v1/batches/"+id, "")
		return ok(b), fmt.Sprint(b)
	})
	return b
}

func batchLines(n int) string {
	var in strings.Builder
	for i := range n {
		fmt.Fprintf(&in, `{"custom_id":"c%d","method":"POST","url":"/v1/completions","body":{"prompt":"p%d","max_tokens":5}}`+"\n", i, i)
	}
	return in.String()
}

func TestBatchAcrossARestart(t *testing.T) {
	l, dir, e := journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{pause: 3 * time.Millisecond}
	e.most = 10 // the other lines wait until the batch was inspected
	h := open(t, l, dir, e, config{Window: 8, Config: jobs.Config{Parallel: 4}})
	in := h.upload(batchLines(30) + "\n" + `{"custom_id":"bad","method":"POST","url":"/v1/completions","body":{"prompt":"x","temperature":-1}}`)
	ask := `{"input_file_id":"` + in + `","endpoint":"/v1/completions","completion_window":"24h","metadata":{"a":"b"}}`
	id := h.want(200, "POST", "/v1/batches", ask, "Idempotency-Key", "x")["id"].(string)
	h.batchUntil(id, func(b map[string]any) bool { return b["request_counts"].(map[string]any)["completed"].(float64) >= 6 })
	h.want(409, "DELETE", "/v1/files/"+in, "")
	h.close()
	e.release()
	h = open(t, l, dir, e, config{Window: 8, Config: jobs.Config{Parallel: 4}})
	if again := h.want(200, "POST", "/v1/batches", ask, "Idempotency-Key", "x"); again["id"] != id {
		t.Fatal("one key, two batches")
	}
	b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" })
	if c := fmt.Sprint(b["request_counts"]); c != "map[completed:30 failed:1 total:31]" {
		t.Fatal(c)
	}
	out, bad := h.lines(b["output_file_id"]), h.lines(b["error_file_id"])
	if len(out) != 30 || len(bad) != 1 || bad[0]["custom_id"] != "bad" || bad[0]["response"].(map[string]any)["status_code"] != 400.0 {
		t.Fatalf("%d lines, errors %v", len(out), bad)
	}
	for i, line := range out {
		want := h.want(200, "POST", "/v1/completions", fmt.Sprintf(`{"prompt":"p%d","max_tokens":5,"seed":1}`, i))
		got := line["response"].(map[string]any)["body"].(map[string]any)
		if line["custom_id"] != fmt.Sprintf("c%d", i) || canon(got["usage"]) != canon(want["usage"]) {
			t.Fatalf("line %d: %v", i, line)
		}
	}
}

func TestBatchesThatFailOrAreCancelled(t *testing.T) {
	e := &fakeEngine{pause: 20 * time.Millisecond, most: 4}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), e, config{Window: 4, Config: jobs.Config{Parallel: 2}})
	create := func(text string) string {
		return h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+h.upload(text)+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
	}
	line := `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}` + "\n"
	for text, code := range map[string]string{"": "empty_file", "x\n": "invalid_json_line", line + line: "duplicate_custom_id",
		strings.Replace(line, "POST", "GET", 1): "invalid_method", strings.Replace(line, "completions", "models", 1): "mismatched_endpoint"} {
		b := h.batchUntil(create(text), func(b map[string]any) bool { return b["status"] == "failed" })
		if got := b["errors"].(map[string]any)["data"].([]any)[0].(map[string]any)["code"]; got != code {
			t.Errorf("%q: %v, want %s", text, got, code)
		}
	}
	id := create(batchLines(20))
	h.batchUntil(id, func(b map[string]any) bool { return b["request_counts"].(map[string]any)["completed"].(float64) >= 2 })
	if b := h.want(200, "POST", "/v1/batches/"+id+"/cancel", ""); b["status"] != "cancelling" {
		t.Fatalf("%v", b)
	}
	e.release()
	b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "cancelled" })
	good, rest := h.lines(b["output_file_id"]), h.lines(b["error_file_id"])
	if c, want := fmt.Sprint(b["request_counts"]), fmt.Sprintf("map[completed:%d failed:%d total:20]", len(good), len(rest)); c != want {
		t.Errorf("counts %s, want %s", c, want)
	}
	if len(good)+len(rest) != 20 || len(good) < 2 || rest[0]["error"].(map[string]any)["code"] != "batch_cancelled" {
		t.Fatalf("%d good, others %v", len(good), rest)
	}
}

// TestBatchTakenOver: a process with another data directory completes the batch.
func TestBatchTakenOver(t *testing.T) {
	l, fl := journaltest.NewMemoryLog(), journaltest.NewMemoryLog()
	h := openWith(t, l, sharedFiles(t, fl), &fakeEngine{away: true}, config{Window: 4})
	in := h.upload(batchLines(10))
	id := h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+in+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
	h.close()
	h = openWith(t, l, sharedFiles(t, fl), &fakeEngine{}, config{Window: 4})
	b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" || b["status"] == "failed" })
	if b["status"] != "completed" {
		t.Fatalf("%v", b)
	}
	out := b["output_file_id"]
	h.close()
	h = openWith(t, l, sharedFiles(t, fl), &fakeEngine{}, config{})
	if lines := h.lines(out); len(lines) != 10 {
		t.Errorf("a third process finds %d lines in the output", len(lines))
	}
	if b := h.want(200, "GET", "/v1/files", ""); len(b["data"].([]any)) != 2 {
		t.Errorf("files: %v", b["data"])
	}
	h.want(200, "DELETE", "/v1/files/"+in, "")
	h.want(404, "GET", "/v1/files/"+in, "")
}
