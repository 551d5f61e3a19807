package adapters

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/lora/loratest"
)

const dir = "../engine/model/testdata/llama"

func config(t *testing.T) (*checkpoint.Checkpoint, Config) {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	return ck,
		Config{Model: &ck.Config, Hash: ck.Hash(), Names: []string{"base"}, Dir: filepath.Join(t.TempDir(), "adapters"), From: t.TempDir()}
}

func opened(t *testing.T, c Config) (*Registry, []error) {
	t.Helper()
	r, skipped, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, skipped
}

// TestAdaptersOutliveTheProcess: a restarted process has the loaded adapters, although their sources are
// gone. It has no unloaded adapter. It skips an adapter of another model, and gives the reason.
func TestAdaptersOutliveTheProcess(t *testing.T) {
	ck, c := config(t)
	for i, name := range []string{"a", "b"} {
		if err := loratest.Write(filepath.Join(c.From, name), loratest.Config(8, nil), loratest.Random(&ck.Config, 8, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := opened(t, c)
	loaded, err := r.Load("one", "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Load("two", filepath.Join(c.From, "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Load("one", "b"); !errors.Is(err, ErrExists) {
		t.Errorf("a name in use: %v", err)
	}
	if _, err := r.Unload("two"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Unload("two"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown name: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(c.From, "a")); err != nil {
		t.Fatal(err)
	}
	again, skipped := opened(t, c)
	e, ok := again.Get("one")
	if !ok || e.ID != loaded.ID || e.Bytes != loaded.Bytes || len(again.List()) != 1 || len(skipped) != 0 {
		t.Errorf("after a restart: %+v, %v", again.List(), skipped)
	}
	if folder, ok := again.Folder(e.ID); !ok || folder == "" {
		t.Error("its files are not known")
	}
	c.Hash = "another"
	other, skipped := opened(t, c)
	if len(other.List()) != 0 || len(skipped) != 1 || !strings.Contains(skipped[0].Error(), "load it again") {
		t.Errorf("with another model: %+v, %v", other.List(), skipped)
	}
}

// TestAdapterMustFitTheModel: shapes, ranks and modules that the model does not have are refused by name.
func TestAdapterMustFitTheModel(t *testing.T) {
	ck, c := config(t)
	r, _ := opened(t, c)
	q := "base_model.model.model.layers.1.self_attn.q_proj"
	for name, x := range map[string]struct {
		rank   int
		change func(map[string]loratest.Tensor)
		want   string
	}{
		"a rank above the limit": {rank: 257, want: "at most 256"},
		"an unknown module": {rank: 8, want: "is not a matrix that an adapter can change", change: func(m map[string]loratest.Tensor) {
			m["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"],
				m["base_model.model.model.layers.7.self_attn.q_proj.lora_B.weight"] = m[q+".lora_A.weight"], m[q+".lora_B.weight"]
		}},
		"experts": {rank: 8, want: "matrix of experts", change: func(m map[string]loratest.Tensor) {
			m["base_model.model.model.layers.1.mlp.experts.0.up_proj.lora_A.weight"],
				m["base_model.model.model.layers.1.mlp.experts.0.up_proj.lora_B.weight"] = m[q+".lora_A.weight"], m[q+".lora_B.weight"]
		}},
		"the head": {rank: 8, want: "head or the embedding", change: func(m map[string]loratest.Tensor) {
			m["base_model.model.lm_head.lora_A.weight"], m["base_model.model.lm_head.lora_B.weight"] = m[q+".lora_A.weight"], m[q+".lora_B.weight"]
		}},
		"another shape": {rank: 8, want: "has shape [128 128] in the model", change: func(m map[string]loratest.Tensor) {
			m[q+".lora_B.weight"] = loratest.Tensor{Shape: []int{64, 8}, Values: make([]float32, 512)}
		}},
		"a module under two names": {rank: 8, want: "twice", change: func(m map[string]loratest.Tensor) {
			twin := "base_model.model.language_model.model.layers.1.self_attn.q_proj"
			m[twin+".lora_A.weight"], m[twin+".lora_B.weight"] = m[q+".lora_A.weight"], m[q+".lora_B.weight"]
		}},
	} {
		folder, tensors := t.TempDir(), loratest.Random(&ck.Config, x.rank, 1)
		if x.change != nil {
			x.change(tensors)
		}
		if err := loratest.Write(folder, loratest.Config(x.rank, nil), tensors); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Add("x", folder); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
	if len(r.List()) != 0 {
		t.Errorf("%+v", r.List())
	}
}

// sources writes adapters to the folder from which the API may load them.
func sources(t *testing.T, ck *checkpoint.Checkpoint, c Config, names ...string) {
	t.Helper()
	for i, name := range names {
		if err := loratest.Write(filepath.Join(c.From, name), loratest.Config(8, nil), loratest.Random(&ck.Config, 8, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
}

func load(t *testing.T, r *Registry, name, path string) Entry {
	t.Helper()
	e, err := r.Load(name, path)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestRequestsDoNotWaitForALoad: while an adapter of gigabytes is copied, requests find the others.
func TestRequestsDoNotWaitForALoad(t *testing.T) {
	ck, c := config(t)
	sources(t, ck, c, "a", "b")
	r, _ := opened(t, c)
	a := load(t, r, "one", "a")
	copies, begun, end := r.copy, make(chan struct{}), make(chan struct{})
	r.copy = func(from fs.FS) (lora.ID, error) {
		close(begun)
		<-end
		return copies(from)
	}
	loaded := make(chan error, 1)
	go func() {
		_, err := r.Load("two", "b")
		loaded <- err
	}()
	<-begun
	found := make(chan bool, 1)
	go func() {
		_, named := r.Get("one")
		_, files := r.Folder(a.ID)
		found <- named && files && len(r.List()) == 1
	}()
	select {
	case ok := <-found:
		if !ok {
			t.Error("the adapter that is there was not found")
		}
	case <-time.After(10 * time.Second):
		t.Error("a request waits for the copy of an adapter that it does not use")
	}
	close(end)
	if err := <-loaded; err != nil || len(r.List()) != 2 {
		t.Errorf("%v, %+v", err, r.List())
	}
}

// TestAdaptersOfTheModelBefore: a folder that serves another model for a time has the adapters of the first one afterwards.
// An adapter that cannot be opened for a time is kept, too.
func TestAdaptersOfTheModelBefore(t *testing.T) {
	ck, c := config(t)
	sources(t, ck, c, "a", "b")
	r, _ := opened(t, c)
	a := load(t, r, "one", "a")
	other := c
	other.Hash = "another"
	r, _ = opened(t, other)
	load(t, r, "two", "b")
	r, skipped := opened(t, c)
	if e, ok := r.Get("one"); !ok || e.ID != a.ID || len(skipped) != 1 {
		t.Fatalf("of the first model: %+v, %v", r.List(), skipped)
	}

	path, aside := r.store.Path(a.ID), filepath.Join(t.TempDir(), "aside")
	if err := os.Rename(path, aside); err != nil {
		t.Fatal(err)
	}
	r, skipped = opened(t, c)
	if len(r.List()) != 0 || len(skipped) != 2 {
		t.Fatalf("without its files: %+v, %v", r.List(), skipped)
	}
	load(t, r, "three", "b")
	if err := os.Rename(aside, path); err != nil {
		t.Fatal(err)
	}
	r, _ = opened(t, c)
	if len(r.List()) != 2 {
		t.Errorf("its files are back, and the list is %+v", r.List())
	}
	for _, e := range r.List() {
		if _, err := r.Unload(e.Name); err != nil {
			t.Error(err)
		}
	}
	if r, _ = opened(t, c); len(r.List()) != 0 {
		t.Errorf("unloaded, and the list is %+v", r.List())
	}
	if r, _ = opened(t, other); len(r.List()) != 1 {
		t.Errorf("of the other model: %+v", r.List())
	}
}

// TestFilesOfUnloadedAdapters: they stay while requests of this process may use them, also if the adapter is loaded again
// and refused. The next process removes them.
func TestFilesOfUnloadedAdapters(t *testing.T) {
	ck, c := config(t)
	sources(t, ck, c, "a")
	r, _ := opened(t, c)
	a := load(t, r, "one", "a")
	if _, err := r.Unload("one"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Load("no name!", "a"); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
	folder, known := r.Folder(a.ID)
	if !known || !r.store.HasFiles(a.ID) {
		t.Errorf("the files of an unloaded adapter are gone: %q, %v", folder, known)
	}
	again, skipped := opened(t, c)
	if again.store.HasFiles(a.ID) || len(skipped) != 0 {
		t.Errorf("the next process keeps the files of an adapter without a name: %v", skipped)
	}
}
