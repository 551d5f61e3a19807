package files

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

type noEngine struct{ engine.Engine }

// TestUploadThatIsNone: an invalid multipart body gets a client error and leaves no file.
func TestUploadThatIsNone(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load("../../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	a, err := api.New(api.Config{Models: []string{"m"}, MaxModelLen: 4096, Logger: quiet}, noEngine{}, engine.FromTokenizer(tok), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := routes.NewMount(a, "closed")
	if err != nil {
		t.Fatal(err)
	}
	m.Serve(0, Serve(f, a, quiet, func(string) string { return "" }).Routes())
	post := func(body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/v1/files", body)
		r.Host = "localhost"
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, r)
		return w
	}
	const head = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{}\r\n"
	for what, body := range map[string]string{
		"nothing":           "",
		"no boundary":       "hello",
		"a broken header":   head + "--x\r\nno header\r\n\r\nbatch\r\n--x--\r\n",
		"text after a part": head + "--x no end\r\nbatch\r\n--x--\r\n",
		"cut off":           head + "--x\r\n",
		"cut off in a part": head[:len(head)-2],
		"too many parts":    head + strings.Repeat("--x\r\nContent-Disposition: form-data; name=\"y\"\r\n\r\n\r\n", 20) + "--x--\r\n",
	} {
		if w := post(strings.NewReader(body)); w.Code != 400 {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	const full = head + "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
	for _, begun := range []string{head[:len(head)-2], full} { // cut inside the file, and after it
		for want, err := range map[int]error{408: os.ErrDeadlineExceeded, 400: io.ErrClosedPipe} {
			if w := post(io.MultiReader(strings.NewReader(begun), iotest.ErrReader(err))); w.Code != want {
				t.Errorf("%v after %d bytes: %d %s, want %d", err, len(begun), w.Code, w.Body, want)
			}
		}
	}
	if left, err := f.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if on, err := os.ReadDir(f.dir); err != nil || len(on) > 0 || f.total+f.written != 0 || f.writing != 0 {
		t.Errorf("left over: %v on disk, %d + %d bytes, %d being written, %v", on, f.total, f.written, f.writing, err)
	}
	if status, answer := apierr.ErrorStatus(fileProblem(fmt.Errorf("jobs: %w", os.ErrDeadlineExceeded))); status != 503 {
		t.Errorf("a store that does not answer: %d %s", status, answer)
	}
}

// Contexts are stored as files and read back unchanged, but no file route shows them. A damaged one
// is reported and the others stay readable.
func TestContextsAreNoFiles(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, ctx := Contexts{f}, t.Context()
	ann := generate.SavedContext{Tenant: "ann", Name: "book", Policy: "squeezed", Automatic: true,
		Created: 7, Fingerprint: "x", IDs: []int32{3, 1, 2}}
	for _, k := range []generate.SavedContext{ann, {Tenant: "bob", Name: "book", IDs: []int32{9}}} {
		if err := c.SaveContext(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	all, err := c.SavedContexts(ctx)
	if slices.SortFunc(all, func(a, b generate.SavedContext) int { return strings.Compare(a.Tenant, b.Tenant) }); err != nil ||
		len(all) != 2 || !reflect.DeepEqual(all[0], ann) {
		t.Fatalf("%+v, %v", all, err)
	}
	id := contextFile("ann", "book", "x")
	v := Serve(f, nil, nil, func(string) string { return "" })
	list, err := v.listFiles(nil, httptest.NewRequest("GET", "/v1/files", nil))
	if b, _ := json.Marshal(list); err != nil || strings.Contains(string(b), "context") {
		t.Errorf("%s, %v", b, err)
	}
	for _, path := range []string{id, id + "/content"} {
		if _, err := v.getFile(nil, httptest.NewRequest("GET", "/v1/files/"+path, nil)); err == nil {
			t.Errorf("%s is shown", path)
		}
	}
	if _, err := v.deleteFile(nil, httptest.NewRequest("DELETE", "/v1/files/"+id, nil)); err == nil {
		t.Error("a context is deleted as a file")
	}
	if err := os.WriteFile(f.path(id, "data"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := c.SavedContexts(ctx); err == nil || len(all) != 1 || all[0].Tenant != "bob" {
		t.Errorf("after damage: %+v, %v", all, err)
	}
	for range 2 {
		if err := c.DropContext(ctx, "ann", "book", "x"); err != nil {
			t.Error(err)
		}
	}
	if all, err := c.SavedContexts(ctx); err != nil || len(all) != 1 {
		t.Errorf("after it was dropped: %+v, %v", all, err)
	}
}

// TestContextsOfSeveralModels: another model in the same data directory neither replaces nor drops a context of the same
// name. Contexts that an earlier version has written are read, and dropped by their own model only. The oldest contexts of
// a name make room.
func TestContextsOfSeveralModels(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, ctx := Contexts{f}, t.Context()
	names := func() (out []string) {
		all, err := c.SavedContexts(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, k := range all {
			out = append(out, k.Tenant+" "+k.Fingerprint)
		}
		slices.Sort(out)
		return out
	}
	old, err := json.Marshal(generate.SavedContext{Tenant: "ann", Name: "book", Created: 1, Fingerprint: "a", IDs: []int32{1}})
	if err == nil {
		_, err = f.Put(ctx, File{ID: sharedContextFile("ann", "book"), Filename: "book", Purpose: forContexts, CreatedAt: 1},
			bytes.NewReader(old))
	}
	if err != nil {
		t.Fatal(err)
	}
	save := func(tenant, fingerprint string, created int64) {
		t.Helper()
		k := generate.SavedContext{Tenant: tenant, Name: "book", Created: created, Fingerprint: fingerprint, IDs: []int32{2}}
		if err := c.SaveContext(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	save("ann", "b-lora-1", 2)
	save("bob", "b", 2)
	if got, want := names(), []string{"ann a", "ann b-lora-1", "bob b"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	if err := c.DropContext(ctx, "ann", "book", "b"); err != nil { // its adapter is away
		t.Error(err)
	}
	if got, want := names(), []string{"ann a", "bob b"}; !slices.Equal(got, want) {
		t.Errorf("dropped: %q, want %q", got, want)
	}
	save("ann", "a", 3)
	if got, want := names(), []string{"ann a", "bob b"}; !slices.Equal(got, want) {
		t.Errorf("written again: %q, want %q", got, want)
	}
	if err := c.DropContext(ctx, "ann", "book", "a"); err != nil {
		t.Error(err)
	}
	if got, want := names(), []string{"bob b"}; !slices.Equal(got, want) {
		t.Errorf("dropped: %q, want %q", got, want)
	}
	for i := range maxOfName + 2 {
		save("ann", fmt.Sprint("m", i), int64(10+i))
	}
	if got := names(); len(got) != maxOfName+1 || slices.Contains(got, "ann m1") || !slices.Contains(got, "ann m2") ||
		!slices.Contains(got, "bob b") {
		t.Errorf("of %d models: %q", maxOfName+2, got)
	}
}

// unlistable is a store with a damaged record of a file, which makes its list an error.
type unlistable struct{ Store }

func (unlistable) List(context.Context) ([]File, error) { return nil, journal.ErrDamaged }

// TestContextBesideADamagedFile: a context is saved although the record of another file is damaged.
func TestContextBesideADamagedFile(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k := generate.SavedContext{Tenant: "ann", Name: "book", Created: 1, Fingerprint: "a", IDs: []int32{1}}
	if err := (Contexts{unlistable{f}}).SaveContext(t.Context(), k); err != nil {
		t.Error(err)
	}
	if all, err := (Contexts{f}).SavedContexts(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
